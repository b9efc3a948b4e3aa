package apiserver

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/control/pki"
)

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
		text, err := os.ReadFile(s.TrustPath(pki.ClusterAuthority))
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kubelet := func(s *pki.Store) string {
		t.Helper()
		cert, err := tls.LoadX509KeyPair(s.Path(pki.Serving), s.Path(pki.Serving))
		if err != nil {
			t.Fatal(err)
		}
		k := httptest.NewUnstartedServer(http.NotFoundHandler())
		k.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		k.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		k.StartTLS()
		t.Cleanup(k.Close)
		return k.URL
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
