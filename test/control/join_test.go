package control

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-node/berth/agent/cluster"
)

var nodes = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// TestNodeJoins has a node join by a bootstrap token, as the controllers of a cluster let it: they approve its requests
// and sign them with the cluster's authority. Its certificate is renewed at once, since it is old, and it has one to
// serve.
func TestNodeJoins(t *testing.T) {
	t.Parallel()
	p := startWith(t, t.TempDir(), nil, "--controllers=") // what they do is done here, for certificates that end soon
	dir := t.TempDir()
	cfg := cluster.Config{
		Kubeconfig: filepath.Join(dir, "kubelet.conf"), BootstrapKubeconfig: filepath.Join(dir, "bootstrap.conf"),
		CertDir: filepath.Join(dir, "pki"), NodeName: "n1", Rotate: true, ServerBootstrap: true,
		Addresses: func() []string { return []string{"10.1.2.3"} }, ContentType: "application/vnd.kubernetes.protobuf",
		Version: "test", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	letJoin(t, p)
	bootstrapFile(t, p, cfg.BootstrapKubeconfig)
	c, err := cluster.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	runNode(t, c)

	first := signNext(t, p, 95*time.Hour)
	if first.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || !strings.HasPrefix(first.Spec.Username, "system:bootstrap:") {
		t.Errorf("%+v", first.Spec)
	}
	// The renewal and the serving certificate come in any order.
	for range 2 {
		if csr := signNext(t, p, 0); csr.Spec.Username != "system:node:n1" {
			t.Errorf("%+v", csr.Spec)
		}
	}
	until(t, "the certificates are in use", func() error {
		st := c.State()
		served, err := c.Serving().Certificate(nil)
		if err == nil && (served == nil || served.Leaf.VerifyHostname("10.1.2.3") != nil || time.Until(st.NotAfter) < 99*time.Hour) {
			err = fmt.Errorf("%+v, %v", st, served != nil)
		}
		return err
	})
	actAsNode(t, c)

	// The API server goes away and comes back.
	port := p.port(t)
	p.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Get(ctx, nodes, types.NamespacedName{Name: "n1"}, &corev1.Node{}); err == nil {
		t.Error("a server that is gone has answered")
	}
	if st := c.State(); st.Phase != cluster.Unreachable {
		t.Errorf("%+v", st)
	}
	startAt(t, p.dir, port)
	until(t, "it is back", func() error {
		return c.Get(t.Context(), nodes, types.NamespacedName{Name: "n1"}, &corev1.Node{})
	})
	if st := c.State(); st.Phase != cluster.Joined {
		t.Errorf("%+v", st)
	}
}

// actAsNode does what only this node may do.
func actAsNode(t *testing.T, c *cluster.Client) {
	t.Helper()
	made := &corev1.Node{}
	if err := c.Create(t.Context(), nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, made); err != nil {
		t.Fatal(err)
	}
	err := c.Create(t.Context(), nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, &corev1.Node{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("another node was made: %v", err)
	}
	w, err := c.Watch(t.Context(), nodes, "", metav1.ListOptions{FieldSelector: "metadata.name=n1", ResourceVersion: made.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	patch := []byte(`{"metadata":{"labels":{"berth.test/joined":"yes"}}}`)
	if err := c.Patch(t.Context(), nodes, types.NamespacedName{Name: "n1"}, types.StrategicMergePatchType, patch, &corev1.Node{}); err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Object == nil || e.Object.(*corev1.Node).Labels["berth.test/joined"] != "yes" {
		t.Errorf("%+v", e)
	}
}

// runNode runs a node's client until the test ends.
func runNode(t *testing.T, c *cluster.Client) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// letJoin gives holders of tokens the right to ask for certificates, as kubeadm does in its clusters.
func letJoin(t *testing.T, p *plane) {
	t.Helper()
	_, err := p.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:kubelet-bootstrap"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:bootstrappers:kubeadm:default-node-token"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// bootstrapFile is a kubeconfig with a new token.
func bootstrapFile(t *testing.T, p *plane, path string) {
	t.Helper()
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: p.config.Host, CertificateAuthority: filepath.Join(p.dir, "pki", "ca.crt"),
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: strings.TrimSpace(p.run(t, "token", "create"))}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
}

var serial atomic.Int64

// signNext approves the next request that waits, and signs it, as the controllers of a cluster do. The certificate has
// 5 hours left if it is old already, else 100.
func signNext(t *testing.T, p *plane, old time.Duration) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.dir, "pki", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := tls.X509KeyPair(data, data)
	if err != nil {
		t.Fatal(err)
	}
	requests := p.client.CertificatesV1().CertificateSigningRequests()
	var csr *certificatesv1.CertificateSigningRequest
	until(t, "a request", func() error {
		all, err := requests.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, r := range all.Items {
			if len(r.Status.Conditions) == 0 {
				csr = &r
				return nil
			}
		}
		return errors.New("there is none")
	})
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	}}
	if csr, err = requests.UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(csr.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: asked.Subject, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses,
		NotBefore: time.Now().Add(-5*time.Minute - old), NotAfter: time.Now().Add(100*time.Hour - old),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, asked.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if csr, err = requests.UpdateStatus(t.Context(), csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return csr
}
