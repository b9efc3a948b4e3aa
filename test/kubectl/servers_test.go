package kubectl

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-node/berth/test/plane"
)

const namespace = "walk"

// ours starts berth-control, and returns the configuration of a client. It has no controllers, as Kubernetes' own API
// server has none in its process: what they write would be in the answers of one side alone.
func ours(t *testing.T) string {
	t.Helper()
	dir, program, port := t.TempDir(), os.Getenv("BERTH_CONTROL"), plane.Port(t, "127.0.0.1")
	begin(t, program, "serve", "--data-dir="+dir, "--bind=127.0.0.1", "--port="+port, "--service-cidr=10.96.0.0/16", "--controllers=", "--scheduler=false")
	config := filepath.Join(dir, "admin.kubeconfig")
	await(t, "berth-control", func() error {
		data, err := exec.Command(program, "kubeconfig", "--data-dir="+dir, "--server=https://127.0.0.1:"+port).Output()
		if err != nil {
			return err
		}
		return os.WriteFile(config, data, 0o600)
	})
	return inNamespace(t, config)
}

// theirs starts etcd and kube-apiserver, and returns the configuration of a client.
func theirs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	clients, peers, port := "http://127.0.0.1:"+plane.Port(t, "127.0.0.1"), "http://127.0.0.1:"+plane.Port(t, "127.0.0.1"), plane.Port(t, "127.0.0.1")
	begin(t, os.Getenv("BERTH_ETCD"), "--data-dir="+dir+"/etcd", "--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%s", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, port)
	for name, data := range map[string]string{
		"key": string(private), "tokens": "secret,kubernetes-admin,1,system:masters\n", "kubeconfig": config,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begin(t, os.Getenv("BERTH_KUBE_APISERVER"), "--etcd-servers="+clients, "--bind-address=127.0.0.1", "--secure-port="+port, "--cert-dir="+dir,
		"--service-account-key-file="+dir+"/key", "--service-account-signing-key-file="+dir+"/key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true", "--authorization-mode=Node,RBAC", "--token-auth-file="+dir+"/tokens", "--enable-admission-plugins=NodeRestriction")
	return inNamespace(t, filepath.Join(dir, "kubeconfig"))
}

// inNamespace has a client be in the script's namespace, and waits until its server is ready, with what it begins with.
func inNamespace(t *testing.T, config string) string {
	t.Helper()
	kubectl := func(args ...string) error {
		ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
		defer cancel()
		out, err := exec.CommandContext(ctx, os.Getenv("BERTH_KUBECTL"), append([]string{"--kubeconfig=" + config}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := kubectl("config", "set-context", "--current", "--namespace="+namespace); err != nil {
		t.Fatal(err)
	}
	await(t, "the server to be ready", func() error {
		if err := kubectl("get", "--raw", "/readyz"); err != nil {
			return err
		}
		return kubectl("get", "namespaces/kube-node-lease", "clusterrole/view", "priorityclass/system-node-critical", "service/kubernetes",
			"-n", "default")
	})
	return config
}

func await(t *testing.T, what string, check func() error) {
	t.Helper()
	for end := time.Now().Add(startLimit); ; time.Sleep(100 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("wait for %s: %v", what, err)
		}
	}
}
