package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// as is a client of the API with a token, or nobody's.
func (p *plane) as(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	c := rest.AnonymousClientConfig(p.config)
	c.BearerToken, c.QPS = token, -1
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// with is a client of the API with a certificate.
func (p *plane) with(t *testing.T, cert, key []byte) kubernetes.Interface {
	t.Helper()
	c := rest.AnonymousClientConfig(p.config)
	c.CertData, c.KeyData, c.QPS = cert, key, -1
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// asker is a client of a user who may ask for certificates, and has no right to any.
func (p *plane) asker(t *testing.T) kubernetes.Interface {
	t.Helper()
	_, err := p.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "asker"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "asker"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := rest.CopyConfig(p.config)
	c.Impersonate.UserName = "asker"
	client := kubernetes.NewForConfigOrDie(c)
	until(t, "the right is known", func() error {
		o, _ := asked(t, "", certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth, node("b"))
		o.GenerateName = "asker-"
		_, err := client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{"All"}})
		return err
	})
	return client
}

// asked is a request for a certificate, with its key.
func asked(t *testing.T, name, signer string, usage certificatesv1.KeyUsage, r x509.CertificateRequest) (*certificatesv1.CertificateSigningRequest, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
}

// node is the subject of a node's certificates.
func node(name string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}}
}

// signed waits for a certificate.
func (p *plane) signed(t *testing.T, name string) []byte {
	t.Helper()
	var cert []byte
	until(t, "request "+name+" is signed", func() error {
		o, err := p.client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if cert = o.Status.Certificate; len(cert) == 0 {
			return fmt.Errorf("its conditions are %v", o.Status.Conditions)
		}
		return nil
	})
	return cert
}

// TestJoin joins a node as kubelet does: by a token, a certificate of its own, and then another by that one. What has
// another shape, or is another node's, nobody approves.
func TestJoin(t *testing.T) {
	t.Parallel()
	p := startAt(t, t.TempDir(), "0", "--controllers=*,kubelet-serving-approver-controller")
	requests := p.client.CertificatesV1().CertificateSigningRequests()
	token := p.as(t, strings.TrimSpace(p.run(t, "token", "create")))
	ask := func(c kubernetes.Interface, o *certificatesv1.CertificateSigningRequest) {
		t.Helper()
		// A token that was just made is known when the server's own watch has heard of it.
		until(t, "request "+o.Name+" is taken", func() error {
			_, err := c.CertificatesV1().CertificateSigningRequests().Create(t.Context(), o, metav1.CreateOptions{})
			if err != nil && !apierrors.IsUnauthorized(err) {
				t.Fatal(err)
			}
			return err
		})
	}
	const client, serving = certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	// Those that nobody approves come first: when a later one is signed they have been looked at.
	named := node("a")
	named.DNSNames = []string{"kubernetes"}
	master := node("a")
	master.Subject.Organization = append(master.Subject.Organization, "system:masters")
	for name, r := range map[string]x509.CertificateRequest{"named": named, "master": master} {
		o, _ := asked(t, name, client, certificatesv1.UsageClientAuth, r)
		ask(token, o)
	}
	o, _ := asked(t, "server", client, certificatesv1.UsageServerAuth, node("a"))
	ask(token, o)
	o, key := asked(t, "first", client, certificatesv1.UsageClientAuth, node("a"))
	seconds := int32(3600)
	o.Spec.ExpirationSeconds = &seconds
	ask(token, o)
	cert := p.signed(t, "first")
	block, _ := pem.Decode(cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || time.Until(c.NotAfter) > time.Hour || c.IsCA {
		t.Fatalf("the certificate is %v, %v", c, err)
	}

	a := p.with(t, cert, key)
	self := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if _, err := a.CoreV1().Nodes().Create(t.Context(), self, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o, _ = asked(t, "other", client, certificatesv1.UsageClientAuth, node("b"))
	if _, err := a.CertificatesV1().CertificateSigningRequests().Create(t.Context(), o, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node asks for another one: %v", err)
	}
	ask(p.asker(t), o)
	host := node("a")
	host.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 7)}
	o, _ = asked(t, "serving", serving, certificatesv1.UsageServerAuth, host)
	ask(a, o)
	o, _ = asked(t, "again", client, certificatesv1.UsageClientAuth, node("a"))
	ask(a, o)
	p.signed(t, "again")
	// Only now the node has the address that it wants to serve by.
	patch := `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.7"}]}}`
	if _, err := a.CoreV1().Nodes().PatchStatus(t.Context(), "a", []byte(patch)); err != nil {
		t.Fatal(err)
	}
	p.signed(t, "serving")

	all, err := requests.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all.Items {
		switch o.Name {
		case "named", "master", "server", "other":
			if len(o.Status.Conditions) > 0 || len(o.Status.Certificate) > 0 {
				t.Errorf("request %s has %v", o.Name, o.Status)
			}
		}
	}
	// An administrator who approves what its signer is not for gets no certificate.
	bad, err := requests.Get(t.Context(), "master", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bad.Status.Conditions = append(bad.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Tried",
	})
	if _, err := requests.UpdateApproval(t.Context(), bad.Name, bad, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "what is no node's certificate fails", func() error {
		o, err := requests.Get(t.Context(), "master", metav1.GetOptions{})
		if err == nil && len(o.Status.Certificate) > 0 {
			t.Fatal("it is signed")
		}
		if err == nil && o.Status.Conditions[len(o.Status.Conditions)-1].Type != certificatesv1.CertificateFailed {
			err = fmt.Errorf("it has %v", o.Status.Conditions)
		}
		return err
	})
}

// equipped waits for what each namespace has.
func (p *plane) equipped(t *testing.T, namespace string) {
	t.Helper()
	until(t, namespace+" has its account and its authorities", func() error {
		if _, err := p.client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			return err
		}
		c, err := p.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && c.Data["ca.crt"] != string(p.config.CAData) {
			err = fmt.Errorf("the authorities are %v", c.Data)
		}
		return err
	})
}

// TestNamespaces has what each namespace has made again, and a namespace of many objects emptied while the process is
// killed.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir)
	core := p.client.CoreV1()
	if _, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"default", "kube-system", "full"} {
		p.equipped(t, n)
	}
	if err := core.ServiceAccounts("full").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ConfigMaps("full").Patch(t.Context(), "kube-root-ca.crt", "application/merge-patch+json", []byte(`{"data":{"ca.crt":"","b":"c"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.equipped(t, "full")

	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range 50 {
				if _, err := core.ConfigMaps("full").Create(t.Context(), configMap(fmt.Sprintf("c-%d-%d", i, j)), metav1.CreateOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if _, err := core.Pods("full").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept := configMap("kept")
	kept.Finalizers = []string{"example.com/kept"}
	if _, err := core.ConfigMaps("full").Create(t.Context(), kept, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := core.Namespaces().Delete(t.Context(), "full", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.kill()
		p = start(t, dir)
	}
	until(t, "the namespace says what is in the way", func() error {
		n, err := p.client.CoreV1().Namespaces().Get(t.Context(), "full", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "example.com/kept in 1 resource") {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", n.Status.Conditions)
	})
	if _, err := p.client.CoreV1().ConfigMaps("full").Patch(t.Context(), "kept", "application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the namespace is gone", func() error {
		_, err := p.client.CoreV1().Namespaces().Get(t.Context(), "full", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is not"), err)
	})
	p.stop(t)
}

// TestClusterInfo reads what who is to join knows the cluster by, as nobody, and verifies it with the token.
func TestClusterInfo(t *testing.T) {
	t.Parallel()
	p := share(t)
	token := strings.TrimSpace(p.run(t, "token", "create"))
	ended := strings.TrimSpace(p.run(t, "token", "create", "--ttl=2s"))
	id, secret, _ := strings.Cut(token, ".")
	nobody := p.as(t, "").CoreV1()
	var info *corev1.ConfigMap
	until(t, "cluster-info is signed", func() (err error) {
		info, err = nobody.ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err == nil && info.Data["jws-kubeconfig-"+id] == "" {
			err = fmt.Errorf("it has %v", info.Data)
		}
		return err
	})
	parts := strings.Split(info.Data["jws-kubeconfig-"+id], ".")
	if len(parts) != 3 || parts[1] != "" {
		t.Fatalf("the signature is %q", parts)
	}
	header, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	var head struct{ Alg, Kid string }
	if err := json.Unmarshal(header, &head); err != nil || head.Alg != "HS256" || head.Kid != id {
		t.Fatalf("the header is %s: %v", header, err)
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(info.Data["kubeconfig"]))))
	if got, err := base64.RawURLEncoding.DecodeString(parts[2]); err != nil || !hmac.Equal(got, mac.Sum(nil)) {
		t.Error("the signature is another one")
	}
	config, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
	if err != nil || len(config.Clusters) != 1 {
		t.Fatalf("the kubeconfig is %v, %v", config, err)
	}
	for _, c := range config.Clusters {
		if c.Server != p.config.Host || string(c.CertificateAuthorityData) != string(p.config.CAData) {
			t.Errorf("it says %s", c.Server)
		}
	}
	if _, err := nobody.ConfigMaps("kube-public").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("anybody may list")
	}
	gone, _, _ := strings.Cut(ended, ".")
	until(t, "a token that has ended is gone, with its signature", func() error {
		_, err := p.client.CoreV1().Secrets("kube-system").Get(t.Context(), "bootstrap-token-"+gone, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		info, err := nobody.ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		if err == nil && info.Data["jws-kubeconfig-"+gone] != "" {
			err = errors.New("its signature is there")
		}
		return err
	})
}

// TestLeader has three members. One has the controllers run; another takes over when it is killed, and at once when it
// is stopped.
func TestLeader(t *testing.T) {
	t.Parallel()
	p := ports(t, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	var at []memberFlags
	for i := range 3 {
		at = append(at, memberFlags{fmt.Sprintf("127.0.0.%d", i+1), fmt.Sprintf("192.0.2.%d", i+1), p})
	}
	planes := []*plane{at[0].start(t, t.TempDir(), at[0].peer()...)}
	for i := range 2 {
		planes = append(planes, at[i+1].start(t, at[i+1].join(t, planes[i], t.TempDir())))
	}
	has := func(p *plane, name string) {
		t.Helper()
		until(t, "a namespace is made", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
			defer cancel()
			_, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		p.equipped(t, name)
	}
	has(planes[2], "before")
	killed := leading(t, planes...)
	planes[killed].kill()
	others := slices.Delete(slices.Clone(planes), killed, killed+1)
	has(others[0], "after")
	second := leading(t, others...)
	again := at[killed].start(t, planes[killed].dir)
	others[second].stop(t)
	if !strings.Contains(others[second].output.String(), `"this member leads no more" lease=`+controllersLease+"\n") {
		t.Error("the leader has not said that it stops")
	}
	has(again, "stopped")
	leading(t, again, others[1-second])
}

// controllersLease is what who runs the controllers holds. Another member may hold the scheduler's.
const controllersLease = "berth-control"

// leading waits until one of some members leads, and only one. On a busy machine a leader may have lost the lease, and
// another one lead since.
func leading(t *testing.T, planes ...*plane) (which int) {
	t.Helper()
	until(t, "one member leads", func() error {
		var all []int
		for i, p := range planes {
			said := p.output.String()
			began := strings.Count(said, `"this member leads" lease=`+controllersLease+"\n")
			if began > strings.Count(said, `"this member leads no more" lease=`+controllersLease+"\n") {
				all = append(all, i)
			}
		}
		if len(all) != 1 {
			return fmt.Errorf("members %v do", all)
		}
		which = all[0]
		return nil
	})
	return which
}
