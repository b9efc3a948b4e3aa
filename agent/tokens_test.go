package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-node/berth/agent/cluster"
	"github.com/berth-node/berth/agent/token"
)

const controlPlane = "../bin/berth-control"

// startControl starts a real control plane in a directory, and returns how its administrator reaches it.
func startControl(t *testing.T, dir string) *rest.Config {
	t.Helper()
	if _, err := os.Stat(controlPlane); err != nil {
		t.Skipf("%s is not built: make control", controlPlane)
	}
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), controlPlane, "serve", "--data-dir", dir, "--bind", "127.0.0.1", "--port", "0")
	cmd.Stderr = output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if text, err := os.ReadFile(output.Name()); t.Failed() && err == nil {
			t.Logf("the control plane has written:\n%s", text)
		}
		_ = output.Close()
	})
	var cfg *rest.Config
	tries(t, "the control plane is there", func() error {
		select {
		case <-ended:
			t.Fatal("the control plane has ended")
		default:
		}
		if cfg, err = clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig")); err != nil {
			return err
		}
		return get(t, clientOf(t, cfg), "namespaces", "", "default", new(corev1.Namespace))
	})
	return cfg
}

func tries(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func clientOf(t *testing.T, cfg *rest.Config) *cluster.Client {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	c, err := cluster.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func get(t *testing.T, c *cluster.Client, resource, namespace, name string, into cluster.Object) error {
	return c.Get(t.Context(), corev1.SchemeGroupVersion.WithResource(resource), types.NamespacedName{Namespace: namespace, Name: name}, into)
}

func create(t *testing.T, c *cluster.Client, resource string, o, into cluster.Object) {
	t.Helper()
	tries(t, "make "+resource+" "+o.GetName(), func() error {
		return c.Create(t.Context(), corev1.SchemeGroupVersion.WithResource(resource), o, into)
	})
}

// nodeConfig is how the kubelet of a node reaches the server, by a certificate that the cluster's authority signs.
func nodeConfig(t *testing.T, admin *rest.Config, dir, node string) *rest.Config {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "pki", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	var ca *x509.Certificate
	var signer any
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			ca, err = x509.ParseCertificate(block.Bytes)
		} else if signer, err = x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
			signer, err = x509.ParseECPrivateKey(block.Bytes)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject:  pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	out := rest.AnonymousClientConfig(admin)
	out.CertData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	out.KeyData = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return out
}

// claims are what a token says, whoever has signed it.
func claimsOf(t *testing.T, text string) (claims struct {
	Audience any   `json:"aud"` // a text, or several
	Expires  int64 `json:"exp"`
	Issued   int64 `json:"iat"`
	Of       struct {
		Pod, ServiceAccount, Node struct{ Name, UID string }
	} `json:"kubernetes.io"`
},
) {
	t.Helper()
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		t.Fatalf("the token has %d parts", len(parts))
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(body, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// TestTokensOfNode asks a real API server for tokens as a node. It grants them for the node's own pods, and for no
// others.
func TestTokensOfNode(t *testing.T) {
	dir := t.TempDir()
	admin := startControl(t, dir)
	c := clientOf(t, admin)
	for _, node := range []string{"here", "there"} {
		create(t, c, "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, new(corev1.Node))
	}
	for _, account := range []string{"robot", "theirs"} {
		create(t, c, "serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: "default"}}, new(corev1.ServiceAccount))
	}
	pod := func(name, node, account string) *corev1.Pod {
		p, out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}, new(corev1.Pod)
		p.Spec = corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "vault", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "vault", ExpirationSeconds: new(int64(600))}}},
		}}}}
		create(t, c, "pods", p, out)
		return out
	}
	mine, other, foreign := pod("mine", "here", "robot"), pod("other", "there", "robot"), pod("foreign", "there", "theirs")
	m := token.New(token.Config{Ask: askToken(clientOf(t, nodeConfig(t, admin, dir, "here")))})

	// What the admission of the server has put into the pod is what is asked for.
	i := 1
	for i < len(mine.Spec.Volumes) && mine.Spec.Volumes[i].Projected == nil {
		i++
	}
	if i == len(mine.Spec.Volumes) {
		t.Fatalf("the pod has no volume with a token: %+v", mine.Spec.Volumes)
	}
	want := token.Want{Seconds: *mine.Spec.Volumes[i].Projected.Sources[0].ServiceAccountToken.ExpirationSeconds}
	var got token.Token
	tries(t, "the node may have a token", func() (err error) { // when the authorizer has seen the pod
		got, err = m.Token(t.Context(), mine, want)
		return err
	})
	says := claimsOf(t, got.Text)
	if says.Of.Pod.UID != string(mine.UID) || says.Of.ServiceAccount.Name != "robot" || says.Of.Node.Name != "here" {
		t.Errorf("the token is bound to %+v", says.Of)
	}
	if left := time.Until(got.Expires); want.Seconds != 3607 || left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("%d s are asked for, and it is good for %s", want.Seconds, left)
	}
	as := rest.AnonymousClientConfig(admin)
	as.BearerToken = got.Text
	if err := get(t, clientOf(t, as), "secrets", "default", "x", new(corev1.Secret)); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:default:robot") {
		t.Errorf("the server takes the token for %v", err)
	}
	var vault token.Token
	tries(t, "the node may have a token for its vault", func() (err error) {
		vault, err = m.Token(t.Context(), mine, token.Want{Audience: "vault", Seconds: 600})
		return err
	})
	if says := claimsOf(t, vault.Text); strings.Trim(fmt.Sprint(says.Audience), "[]") != "vault" || says.Expires-says.Issued != 600 {
		t.Errorf("%+v", says)
	}

	again := mine.DeepCopy()
	again.UID = "7c1f7a52-1f3b-4f63-9d0f-0e7ad0f1e6f0"
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want token.Want
		is   func(error) bool
	}{
		"a pod of another node with an account of ours": {other, want, apierrors.IsForbidden},
		"an account of others":                          {foreign, want, apierrors.IsForbidden},
		"a pod that was there before":                   {again, want, apierrors.IsForbidden},
		"an audience that is not in the pod":            {mine, token.Want{Audience: "bank", Seconds: 600}, apierrors.IsForbidden},
		"a life that is too short":                      {mine, token.Want{Seconds: 1}, apierrors.IsInvalid},
	} {
		tries(t, name, func() error { // a server may be late with its answer
			got, err := m.Token(t.Context(), c.pod, c.want)
			var status *apierrors.StatusError
			switch {
			case err == nil:
				t.Errorf("%s: %q", name, got.Text)
				return nil
			case errors.As(err, &status) && c.is(status):
				return nil
			}
			return err
		})
	}
}
