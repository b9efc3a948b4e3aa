package apiserver

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/berth-node/berth/control/pki"
)

// serveWith serves with the certificate and key of a file.
func serveWith(t *testing.T, file string, h http.Handler) string {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	k := httptest.NewUnstartedServer(h)
	k.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	k.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	k.StartTLS()
	t.Cleanup(k.Close)
	return k.URL
}

// TestAPIServerIsNoKubelet has a node's address be that of an API server: it is not spoken to with the rights of one.
func TestAPIServerIsNoKubelet(t *testing.T) {
	own, err := pki.Open(t.TempDir(), pki.Options{Hosts: []string{"127.0.0.1"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := pki.SelfSigned(genericapiserver.LoopbackClientServerNameOverride)
	inside := filepath.Join(t.TempDir(), "inside.pem")
	if err == nil {
		err = os.WriteFile(inside, append(cert, key...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDialer(Options{PKI: own, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for file, good := range map[string]bool{own.Path(pki.Serving): false, inside: false, own.Path(pki.EtcdMember): true} {
		url := serveWith(t, file, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if len(r.TLS.PeerCertificates) == 0 || !good {
				t.Errorf("%s is asked, with %d certificates", file, len(r.TLS.PeerCertificates))
			}
		}))
		answer, err := (&http.Client{Transport: d.Kubelet()}).Get(url)
		if err == nil {
			answer.Body.Close()
		}
		if (err == nil) != good {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestKubeletAuthority calls a kubelet whose authority is rotated: the file counts as it is at each connection.
func TestKubeletAuthority(t *testing.T) {
	authority := func(hosts ...string) *pki.Store {
		s, err := pki.Open(t.TempDir(), pki.Options{Hosts: hosts, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	own, other, elsewhere := authority("127.0.0.1"), authority("127.0.0.1"), authority("192.0.2.1")
	file := filepath.Join(t.TempDir(), "kubelets.crt")
	trust := func(s *pki.Store) {
		t.Helper()
		text, err := os.ReadFile(s.TrustPath(pki.EtcdAuthority))
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kubelet := func(s *pki.Store) string {
		t.Helper()
		return serveWith(t, s.Path(pki.EtcdMember), http.NotFoundHandler())
	}
	here, there := kubelet(own), kubelet(elsewhere)
	if _, err := newDialer(Options{PKI: own, KubeletCA: file, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("authorities that are not there are taken")
	}
	trust(own)
	d, err := newDialer(Options{PKI: own, KubeletCA: file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		trusted *pki.Store
		url     string
		good    bool
	}{{own, here, true}, {other, here, false}, {own, here, true}, {elsewhere, there, false}} {
		trust(c.trusted)
		answer, err := (&http.Client{Transport: d.Kubelet()}).Get(c.url)
		if (err == nil) != c.good {
			t.Errorf("call %d: %v", i, err)
		}
		if err == nil {
			answer.Body.Close()
		}
	}
	// A file that is torn, or is gone for a moment, leaves what was trusted.
	trust(own)
	d.Kubelet()
	for _, damage := range []func() error{func() error { return os.WriteFile(file, nil, 0o600) }, func() error { return os.Remove(file) }} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Client{Transport: d.Kubelet()}).Get(here)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
}

// TestWorkloadsAreOutside calls this machine's own services by names and addresses that lead there, as those who write
// nodes, pods and endpoints may: none is reached.
func TestWorkloadsAreOutside(t *testing.T) {
	own, err := pki.Open(t.TempDir(), pki.Options{Hosts: []string{"127.0.0.1"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDialer(Options{PKI: own, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	here := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(here.Close)
	_, port, err := net.SplitHostPort(here.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "127.1.2.3", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fe80::1%lo", "224.0.0.1"} {
		answer, err := (&http.Client{Transport: d.Workload()}).Get("http://" + net.JoinHostPort(strings.ReplaceAll(host, "%", "%25"), port))
		if err == nil {
			answer.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "address not allowed") {
			t.Errorf("%s: %v", host, err)
		}
	}
}
