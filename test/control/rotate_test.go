package control

import (
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// rotated is what clients have of a cluster's authority: what they trust, and what it has signed for them.
type rotated struct{ trust, certs []byte }

func (p *plane) credentials(t *testing.T) rotated {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return rotated{c.CAData, c.CertData}
}

// first is the first certificate of a text.
func first(text []byte) []byte {
	block, _ := pem.Decode(text)
	return pem.EncodeToMemory(block)
}

// ask asks the API, on a connection of its own.
func (p *plane) ask(t *testing.T, trust, certs []byte, token string) error {
	t.Helper()
	c := &rest.Config{Host: p.config.Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: trust, CertData: certs, KeyData: certs}}
	c.Proxy = nil
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	k, err := kubernetes.NewForConfigAndClient(c, client)
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	return err
}

func (p *plane) token(t *testing.T) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := p.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	got, err := p.client.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Token
}

// renew has the plane's clients be those of the kubeconfig as it is now.
func (p *plane) renew(t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	p.config, p.client = config, kubernetes.NewForConfigOrDie(config)
}

// published are the certificates in what extension API servers and pods are told of: in ConfigMaps, by names and keys,
// and in the trust bundle of the API server.
func published(t *testing.T, p *plane) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, c := range []struct{ namespace, name, key string }{
		{"kube-system", "extension-apiserver-authentication", "client-ca-file"},
		{"kube-system", "extension-apiserver-authentication", "requestheader-client-ca-file"},
		{ns, "kube-root-ca.crt", "ca.crt"},
	} {
		have, err := p.client.CoreV1().ConfigMaps(c.namespace).Get(t.Context(), c.name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out[c.name+" "+c.key] = have.Data[c.key]
	}
	const signer = "kubernetes.io/kube-apiserver-serving"
	bundles, err := p.client.CertificatesV1().ClusterTrustBundles().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + signer})
	if err != nil {
		t.Fatal(err)
	}
	out["trust bundle"] = "" // for a moment there may be two
	if len(bundles.Items) == 1 {
		b := bundles.Items[0]
		out["trust bundle"] = b.Spec.TrustBundle
		sum := sha256.Sum256([]byte(b.Spec.TrustBundle))
		if want := fmt.Sprintf("kubernetes.io:kube-apiserver-serving:%x", sum[:12]); b.Name != want {
			t.Errorf("the trust bundle is %s, want %s", b.Name, want)
		}
	}
	return out
}

// waitPublished waits until so many certificates are published.
func waitPublished(t *testing.T, p *plane, want int) {
	t.Helper()
	until(t, fmt.Sprintf("%d authorities are published", want), func() error {
		for where, text := range published(t, p) {
			if n := strings.Count(text, "BEGIN CERTIFICATE"); n != want {
				return fmt.Errorf("%s has %d", where, n)
			}
		}
		return nil
	})
}

// TestRotate rotates all authorities and the key of tokens while a watch goes on. In between who has only what was
// there before and who has only what is new get through, in all combinations; in the end the first do not.
func TestRotate(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	old, oldToken := p.credentials(t), p.token(t)
	roots := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(old.trust)}}
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), roots, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err) // its controller may have been faster
	}
	seen := watched(t, p)

	p.run(t, "certs", "rotate-ca", "--begin")
	p.run(t, "certs", "rotate-ca", "--begin") // that one goes on, which is nothing any more
	p.renew(t)
	now, newToken := p.credentials(t), p.token(t)
	next := first(now.trust)
	if strings.Count(string(now.trust), "BEGIN CERTIFICATE") != 2 || string(next) == string(old.trust) {
		t.Fatalf("the administrator trusts\n%s", now.trust)
	}
	for what, c := range map[string]struct {
		trust, certs []byte
		token        string
	}{
		"trusts old, is old": {old.trust, old.certs, ""}, "trusts old, is new": {old.trust, now.certs, ""},
		"trusts new, is old": {next, old.certs, ""}, "trusts new, is new": {next, now.certs, ""},
		"trusts old, old token": {old.trust, nil, oldToken}, "trusts new, new token": {next, nil, newToken},
	} {
		if err := p.ask(t, c.trust, c.certs, c.token); err != nil {
			t.Errorf("who %s is refused: %v", what, err)
		}
	}
	if key(oldToken) == key(newToken) {
		t.Error("the new key signs no tokens")
	}
	waitPublished(t, p, 2)
	seen("in between")

	needed(t, p)
	p.run(t, "certs", "rotate-ca", "--finish", "--force")
	until(t, "what is old is refused", func() error {
		for what, err := range map[string]error{"certificate": p.ask(t, next, old.certs, ""), "token": p.ask(t, next, nil, oldToken)} {
			if !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("the %s: %w", what, cmpErr(err))
			}
		}
		if err := p.ask(t, old.trust, now.certs, ""); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			return fmt.Errorf("the server is trusted by who trusts the old one: %w", cmpErr(err))
		}
		return nil
	})
	if err := errors.Join(p.ask(t, next, now.certs, ""), p.ask(t, next, nil, newToken)); err != nil {
		t.Errorf("what is new is refused: %v", err)
	}
	waitPublished(t, p, 1)
	seen("in the end")
	if text := string(p.credentials(t).trust); text != string(next) {
		t.Errorf("the administrator trusts\n%s", text)
	}
	if aside, _ := filepath.Glob(filepath.Join(p.dir, "pki", "*.old.pem")); len(aside) != 0 {
		t.Errorf("there still are %v", aside)
	}
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it gets through")
	}
	return err
}

// key is which key has signed a token.
func key(token string) string { header, _, _ := strings.Cut(token, "."); return header }

// watched watches ConfigMaps. What it returns makes one and waits until the watch has told of it.
func watched(t *testing.T, p *plane) func(name string) {
	t.Helper()
	w, err := p.client.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return func(name string) {
		t.Helper()
		name = "seen-" + strings.ReplaceAll(name, " ", "-")
		if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for late := time.After(patience); ; {
			select {
			case e, ok := <-w.ResultChan():
				if !ok || e.Type == watch.Error {
					t.Fatalf("%s: the watch has ended: %v", name, e.Object)
				}
				if c, is := e.Object.(*corev1.ConfigMap); is && c.Name == name {
					return
				}
			case <-late:
				t.Fatalf("%s: the watch says nothing", name)
			}
		}
	}
}

// needed has the end of a rotation refused, with the names of who needs what was there before.
func needed(t *testing.T, p *plane) {
	t.Helper()
	until(t, "who needs the old ones is known", func() error {
		status, err := control(t, p.dir, "certs", "rotate-ca", "--status")
		if err != nil || !strings.Contains(status, "kubernetes-admin") || !strings.Contains(status, "system:serviceaccount:default:robot") {
			return fmt.Errorf("%s: %w", status, err)
		}
		return nil
	})
	for authority, who := range map[string]string{"ca": "kubernetes-admin", "sa": "system:serviceaccount:default:robot"} {
		if out, err := control(t, p.dir, "certs", "rotate-ca", "--finish", "--authority", authority); err == nil || !strings.Contains(out, who) {
			t.Errorf("%s is needed by %s, and its end is not refused so: %v\n%s", authority, who, err, out)
		}
	}
}

// TestRotateKilled kills the command and the server at random moments of a rotation. Run again it comes to its end, and
// at each moment who has what was there before gets through.
func TestRotateKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir)
	old := p.credentials(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	for i := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		c := exec.CommandContext(ctx, binary, "certs", "rotate-ca", "--begin", "--data-dir", dir)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(chance.IntN(250)) * time.Millisecond
		select {
		case <-time.After(after):
		case <-p.ended:
		}
		_ = c.Process.Kill()
		if i%2 == 0 {
			p.kill()
		}
		_ = c.Wait()
		cancel()
		if i%2 == 0 {
			p = start(t, dir)
		}
		if err := p.ask(t, old.trust, old.certs, ""); err != nil {
			t.Fatalf("killed after %s, round %d: %v", after, i, err)
		}
	}
	p.run(t, "certs", "rotate-ca", "--begin")
	now := p.credentials(t)
	next := first(now.trust)
	if err := errors.Join(p.ask(t, next, now.certs, ""), p.ask(t, old.trust, old.certs, ""), p.ask(t, next, old.certs, "")); err != nil {
		t.Error(err)
	}
	// The end, too, comes to be so by a start alone.
	c := exec.CommandContext(t.Context(), binary, "certs", "rotate-ca", "--finish", "--force", "--timeout", "10ms", "--data-dir", dir)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Duration(chance.IntN(100)) * time.Millisecond) // any moment of it
	p.kill()
	_ = c.Wait()
	p = start(t, dir)
	p.run(t, "certs", "rotate-ca", "--finish", "--force")
	until(t, "what is old is refused", func() error {
		if err := p.ask(t, next, old.certs, ""); !apierrors.IsUnauthorized(err) {
			return cmpErr(err)
		}
		return nil
	})
	if err := p.ask(t, next, now.certs, ""); err != nil {
		t.Error(err)
	}
}

// TestRotateMembers rotates everything on three members while they are written to, with one of them away at first.
func TestRotateMembers(t *testing.T) {
	t.Parallel()
	at, planes := three(t, [3]string{t.TempDir(), t.TempDir(), t.TempDir()})
	w := &writing{}
	old := planes[0].credentials(t)
	planes[2].kill()
	// Etcd may elect first.
	out, err := control(t, planes[0].dir, "certs", "rotate-ca", "--begin", "--timeout", "30s", "--authority", "ca")
	if err == nil || !strings.Contains(out, "berth-control etcd remove") || !strings.Contains(out, name(t, planes[2])) {
		t.Errorf("one member is away, and the rotation is not refused for it: %v\n%s", err, out)
	}
	planes[2] = at[2].start(t, planes[2].dir)
	planes[1].run(t, "certs", "rotate-ca", "--begin")
	var next []byte
	for i, p := range planes {
		now := p.credentials(t)
		if next == nil {
			next = first(now.trust)
		}
		if string(first(now.trust)) != string(next) {
			t.Errorf("member %d has another authority", i)
		}
		if err := errors.Join(p.ask(t, old.trust, old.certs, ""), p.ask(t, next, now.certs, ""), p.ask(t, next, old.certs, "")); err != nil {
			t.Errorf("member %d: %v", i, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, p := range planes[:2] {
		p.renew(t)
		w.wait.Go(func() { w.write(ctx, p.client, "rotated-"+strconv.Itoa(i)) })
	}
	w.more(t)
	planes[2].run(t, "certs", "rotate-ca", "--finish", "--force")
	for i, p := range planes {
		until(t, "what is old is refused", func() error {
			if err := p.ask(t, next, old.certs, ""); !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("member %d: %w", i, cmpErr(err))
			}
			return nil
		})
		p.renew(t)
	}
	w.more(t)
	// One that has read the new authority alone, and two that have not, are members of each other.
	planes[2].kill()
	w.more(t)
	planes[2] = at[2].start(t, planes[2].dir)
	told(t, planes[0], "192.0.2.1", "192.0.2.2", "192.0.2.3")
	w.more(t)
	cancel()
	w.wait.Wait()
	w.check(t, planes[2].client)
}

// name is what a member is called by the others.
func name(t *testing.T, p *plane) string {
	t.Helper()
	var names []string
	text, err := os.ReadFile(filepath.Join(p.dir, "member.json"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, value, ok := strings.Cut(line, `"name": "`); ok {
			names = append(names, strings.TrimRight(value, "\",\n"))
		}
	}
	if len(names) != 1 || slices.Contains(names, "") {
		t.Fatalf("names in the record of %s are %q", p.dir, names)
	}
	return names[0]
}
