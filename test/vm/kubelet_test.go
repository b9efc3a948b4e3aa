package vm

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"
)

// kubeadm are the files of a machine that kubeadm's package and command have made a node: kubelet's unit, the drop-in
// of the package, and the configuration with all that kubeadm writes into it.
var kubeadm = map[string]string{
	"/usr/lib/systemd/system/kubelet.service": `[Unit]
Description=kubelet: The Kubernetes Node Agent
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
`,
	"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": `[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`,
	"/var/lib/kubelet/config.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`,
}

// authority makes the cluster's authority, in PEM, and a client of it that administers nodes.
func authority(t *testing.T) (ca string, client tls.Certificate) {
	t.Helper()
	make := func(cert, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if by == nil {
			by = key
		}
		// The machine's clock is this one's.
		cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, rootKey := make(root, root, nil)
	der, key := make(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, root, rootKey)
	ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}))
	return ca, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// asks asks kubelet's port from outside of the machine.
func (l *life) asks(t *testing.T, path string, with ...tls.Certificate) (int, string) {
	t.Helper()
	client := http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: with}, DisableKeepAlives: true,
	}}
	resp, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", l.machine.kubelet, path))
	if err != nil {
		t.Fatalf("ask kubelet's port: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatalf("ask kubelet's port: %v", err)
	}
	return resp.StatusCode, string(bytes.TrimSpace(body))
}

// kubelet has kubelet.service run berth, by the drop-in, on a machine as kubeadm leaves it, and goes back to
// berth.service.
func (l *life) kubelet(t *testing.T) {
	m := l.machine
	m.run("rm /etc/berth/manifests/site.yaml; mv /etc/berth/manifests/kept.yaml /root")
	m.await("the pods to be gone", `! berth pods --no-headers | grep -E '^(site|kept)-'`)
	m.run("systemctl disable --now berth; mkdir -p /etc/kubernetes/manifests /etc/kubernetes/pki /usr/lib/systemd/system/kubelet.service.d")
	m.run("[ ! -e /var/lib/kubelet ] && mkdir /var/lib/kubelet")
	ca, admin := authority(t)
	files := map[string]string{
		"/etc/kubernetes/pki/ca.crt": ca, "/etc/kubernetes/manifests/site.yaml": manifest("site", "site", true),
	}
	for _, all := range []map[string]string{kubeadm, files} {
		for path, text := range all {
			m.run(fmt.Sprintf("cat >%s <<'END'\n%sEND", path, text))
		}
	}
	// As docs/migrate-from-kubelet.md says it.
	m.run(`
mkdir -p /etc/systemd/system/kubelet.service.d
berth unit kubelet -- --config /var/lib/kubelet/config.yaml --runtime= > /etc/systemd/system/kubelet.service.d/90-berth.conf
systemctl daemon-reload`)
	if out := m.run("systemd-analyze verify --man=no --recursive-errors=no kubelet.service 2>&1"); out != "" {
		t.Errorf("systemd says of the unit and its drop-ins: %s", out)
	}
	m.run("systemctl enable --now kubelet")
	const pid = "systemctl show -p MainPID --value kubelet"
	l.ready("site")
	l.serves(t)
	was := l.process()
	l.answers(t, admin)
	for _, script := range []string{"systemctl restart kubelet", "kill -9 $(" + pid + ")", "dpkg -i " + newDeb} {
		before := m.run(pid)
		m.run(script)
		m.await("another agent", fmt.Sprintf(`now=$(%s); [ $now != 0 -a $now != %s ] && systemctl is-active kubelet && berth pods`, pid, before))
		l.goesOn(t, script+" of kubelet.service", was)
	}
	l.answers(t, admin)
	if out := m.run("systemctl is-active berth || true"); out != "inactive" {
		t.Errorf("berth.service is %s beside it", out)
	}
	// One of them at a time, whoever starts the other.
	m.run("systemctl start berth")
	if out := m.run("systemctl is-active kubelet || true"); out != "inactive" {
		t.Errorf("kubelet.service is %s beside berth.service", out)
	}
	m.run("systemctl start kubelet; rm /etc/kubernetes/manifests/site.yaml")
	m.await("the pod to be gone", `berth pods && ! berth pods --no-headers | grep '^site-'`)
	// kubeadm's configuration has systemd make the groups, and berth's own service here makes them by files: what the
	// driver before has made goes by its name.
	m.run(`
systemctl disable --now kubelet
berth purge --yes --cgroup-driver systemd
rm -r /etc/systemd/system/kubelet.service.d /usr/lib/systemd/system/kubelet.service* /etc/kubernetes /var/lib/kubelet/config.yaml
rmdir /var/lib/kubelet
systemctl daemon-reload
systemctl enable --now berth`)
	l.apply("site", "site", true)
	l.ready("site")
	m.run("mv /root/kept.yaml /etc/berth/manifests")
	l.keeps(t)
}

// answers holds who runs as kubelet to what kubelet answers on its ports.
func (l *life) answers(t *testing.T, admin tls.Certificate) {
	t.Helper()
	if out := l.machine.run("busybox wget -q -O - http://127.0.0.1:10248/healthz"); out != "ok" {
		t.Errorf("/healthz of port 10248 is %q", out)
	}
	if code, body := l.asks(t, "/pods"); code != http.StatusUnauthorized {
		t.Errorf("nobody asks for pods, and gets %d: %s", code, body)
	}
	for path, want := range map[string]string{"/healthz": "ok", "/pods": `"site-berth-vm"`, "/metrics": "kubelet_running_pods"} {
		if code, body := l.asks(t, path, admin); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s is %d: %.300s", path, code, body)
		}
	}
}
