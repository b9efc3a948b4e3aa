package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestDecide(t *testing.T) {
	now := time.Now()
	cert := func(node string, from, to time.Duration) *x509.Certificate {
		c := client(node, now.Add(from*time.Hour), now.Add(to*time.Hour))
		return &c
	}
	for name, c := range map[string]struct {
		s    situation
		want act
		wait time.Duration // at most
	}{
		"nothing at all":          {situation{}, nothing, longest},
		"means":                   {situation{bootstrap: true}, bootstrap, 0},
		"a token":                 {situation{access: true, rotate: true, bootstrap: true}, nothing, longest},
		"a new certificate":       {situation{access: true, rotate: true, cert: cert("n1", -1, 99)}, nothing, 90 * time.Hour},
		"an old one":              {situation{access: true, rotate: true, cert: cert("n1", -95, 5)}, renew, 0},
		"an old one, not renewed": {situation{access: true, cert: cert("n1", -95, 5)}, nothing, 6 * time.Hour},
		"another node's":          {situation{access: true, rotate: true, cert: cert("n2", -1, 99)}, renew, 0},
		"one that has ended":      {situation{access: true, rotate: true, cert: cert("n1", -99, -1)}, nothing, longest},
		"and means":               {situation{access: true, bootstrap: true, cert: cert("n1", -99, -1)}, bootstrap, 0},
		"one that begins later":   {situation{access: true, rotate: true, cert: cert("n1", 10, 99)}, nothing, 99 * time.Hour},
		"refused a moment": {situation{
			access: true, bootstrap: true, cert: cert("n1", -1, 99), refused: now, patience: time.Minute,
		}, nothing, time.Minute},
		"refused": {situation{
			access: true, bootstrap: true, cert: cert("n1", -1, 99), refused: now.Add(-time.Hour), patience: time.Minute,
		}, bootstrap, 0},
		"refused, without means": {situation{
			access: true, cert: cert("n1", -1, 99), refused: now.Add(-time.Hour),
		}, nothing, 100 * time.Hour},
	} {
		c.s.now, c.s.node = now, "n1"
		got, at := c.s.decide()
		if got != c.want || at.Sub(now) > c.wait || got == nothing && !at.After(now) {
			t.Errorf("%s: %d at %s", name, got, at.Sub(now))
		}
	}
}

func TestRenewAt(t *testing.T) {
	a, from := newAuthority(t), time.Now()
	seen := map[time.Duration]bool{}
	for range 20 {
		pair, err := parsePair(a.twice(t, client("n1", from, from.Add(1000*time.Hour))))
		if err != nil {
			t.Fatal(err)
		}
		after := renewAt(pair.Leaf).Sub(pair.Leaf.NotBefore)
		if after < 700*time.Hour || after > 900*time.Hour {
			t.Error(after)
		}
		seen[after] = true
	}
	if len(seen) < 2 {
		t.Error("all are renewed at once")
	}
}

func (a *authority) twice(t *testing.T, c x509.Certificate) ([]byte, []byte) {
	data := a.pair(t, c)
	return data, data
}

// old is a certificate that is to be renewed.
func old() x509.Certificate {
	return client("n1", time.Now().Add(-95*time.Hour), time.Now().Add(5*time.Hour))
}

// TestRotation renews the certificate of a kubeconfig that has it in itself, as kubeadm init makes it, and then that
// which took its place.
func TestRotation(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, old())))
	s.answers(nil)
	n.start()
	n.connect() // while the request waits
	w, err := n.Watch(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "a request", func() error {
		if len(s.asked()) == 0 {
			return errors.New("none")
		}
		return nil
	})
	if st := n.State(); st.Phase != Joined {
		t.Errorf("%+v", st)
	}
	s.answers(s.approve)
	s.later(s.approve)
	for range w.ResultChan() { // it ends with the connection of the old certificate
		t.Error("an event")
	}
	n.connect()
	n.joined()
	if s.csrs[s.asked()[0]].Spec.Username != "system:node:n1" {
		t.Error(s.csrs[s.asked()[0]].Spec.Username)
	}
	// The next start has the new one, though the kubeconfig has the old one still.
	n.stopped()
	clear(s.serials)
	n.start()
	n.connect()
	n.joined()
	if len(s.asked()) != 1 || len(s.serials) != 1 {
		t.Errorf("asked %d times, with %d certificates", len(s.asked()), len(s.serials))
	}
	// A kubeconfig that is put there later is meant.
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, client("n1", time.Now().Add(-time.Hour), time.Now().Add(99*time.Hour)))))
	until(t, "the kubeconfig's own", func() error {
		if st := n.State(); st.NotAfter.After(time.Now().Add(100 * time.Hour)) {
			return errors.New(st.NotAfter.String())
		}
		return nil
	})
}

// TestFutureKubeconfig renews the certificate of a kubeconfig that was written while the clock was ahead: it is used,
// and no other one is asked for.
func TestFutureKubeconfig(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, old())))
	ahead := time.Now().Add(10_000 * time.Hour)
	if err := os.Chtimes(n.cfg.Kubeconfig, ahead, ahead); err != nil {
		t.Fatal(err)
	}
	n.start()
	until(t, "renewed", func() error {
		if st := n.State(); time.Until(st.NotAfter) < 50*time.Hour {
			return fmt.Errorf("%+v, asked %d times", st, len(s.asked()))
		}
		return nil
	})
	n.connect()
	n.joined()
	n.stopped()
	n.start()
	n.connect()
	n.joined()
	if len(s.asked()) != 1 {
		t.Errorf("asked %d times", len(s.asked()))
	}
}

// TestRotations has certificates that are due at once, a few times: a key for each, and no more files than two.
func TestRotations(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, old())))
	var times atomic.Int32
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		c := old()
		if times.Add(1) == 4 {
			c = granted(csr)
		}
		condition(csr, certificatesv1.CertificateApproved)
		csr.Status.Certificate = s.ca.sign(c, requested(csr).PublicKey)
	})
	if err := os.Mkdir(n.cfg.CertDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet-client-2020-01-01-00-00-00.pem", "kubelet-client-2020-01-01.pem", "other.pem"} {
		n.write(filepath.Join(n.cfg.CertDir, name), "")
	}
	n.start()
	until(t, "renewed", func() error {
		if st := n.State(); len(s.asked()) < 4 || st.Phase != Joined && st.Phase != Connecting || time.Until(st.NotAfter) < 100*time.Hour {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	n.connect()
	n.joined()
	if s.asked()[0] == s.asked()[1] || len(s.asked()) != 4 {
		t.Error(s.asked())
	}
	files, _ := os.ReadDir(n.cfg.CertDir)
	if len(files) > 5 {
		t.Errorf("%v", files)
	}
	isFile(t, filepath.Join(n.cfg.CertDir, "other.pem"), true)
	isFile(t, filepath.Join(n.cfg.CertDir, "kubelet-client-2020-01-01.pem"), true)
	isFile(t, filepath.Join(n.cfg.CertDir, "kubelet-client-2020-01-01-00-00-00.pem"), false)
}

// TestRefusedAfterRotation has a signer whose authority the API server does not trust: the old certificate stays.
func TestRefusedAfterRotation(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, old())))
	other := newAuthority(t)
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		condition(csr, certificatesv1.CertificateApproved)
		csr.Status.Certificate = other.sign(granted(csr), requested(csr).PublicKey)
	})
	n.start()
	until(t, "it is told", func() error {
		if st := n.State(); !strings.Contains(st.Message, "does not know the certificate that its signer has signed") {
			return errors.New(st.Message)
		}
		return nil
	})
	n.connect()
	if st := n.State(); st.Phase != Joined {
		t.Errorf("%+v", st)
	}
	isFile(t, n.member.store.currentPath(), false)
	s.answers(s.approve)
	until(t, "renewed", func() error {
		if st := n.State(); time.Until(st.NotAfter) < 100*time.Hour {
			return errors.New(st.Message)
		}
		return nil
	})
	n.connect()
	n.joined()
}

// TestEndedWhileOff has a machine that was off until after its certificate's end.
func TestEndedWhileOff(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	ended := client("n1", time.Now().Add(-99*time.Hour), time.Now().Add(-time.Hour))
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, ended)))
	n.start()
	n.phase(CertificateEnded)
	if st := n.State(); !strings.Contains(st.Message, "has ended at") || !strings.Contains(st.Message, "--bootstrap-kubeconfig") {
		t.Error(st.Message)
	}
	if n.lines.count("CertificateEnded") != 1 {
		t.Error("not told once")
	}
	n.stopped()
	n.bootstrap(s)
	n.start()
	until(t, "another certificate", func() error {
		if st := n.State(); st.NotAfter.Before(time.Now()) {
			return errors.New(st.Message)
		}
		return nil
	})
	n.connect()
	n.joined()
}

// TestClock has a clock that is years early, and then years late, and then right.
func TestClock(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, client("n1", time.Now().Add(-time.Hour), time.Now().Add(99*time.Hour)))))
	var off atomic.Int64
	n.now = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
	n.start()
	n.connect()
	n.phase(Joined)
	year := int64(365 * 24 * time.Hour)
	off.Store(-9 * year)
	if st := n.State(); st.Phase != NotYetValid || !strings.Contains(st.Message, "set the clock") {
		t.Errorf("%+v", st)
	}
	off.Store(9 * year)
	if st := n.State(); st.Phase != CertificateEnded || !strings.Contains(st.Message, "set the clock") {
		t.Errorf("%+v", st)
	}
	n.connect() // the server's clock is what counts
	off.Store(0)
	n.phase(Joined)
}

// TestRefused has a cluster whose authority was exchanged: with means, the node joins anew.
func TestRefused(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(newAuthority(t).pair(t, client("n1", time.Now().Add(-time.Hour), time.Now().Add(99*time.Hour)))))
	n.start()
	if _, err := n.who(); err == nil {
		t.Fatal("an unknown certificate was taken")
	}
	n.phase(Unauthorized)
	_, _ = n.who()
	if n.lines.count("phase=Unauthorized") != 1 {
		t.Error("not told once")
	}
	n.stopped()
	n.bootstrap(s)
	n.start()
	until(t, "joined anew", func() error {
		_, err := n.who()
		// They may be replaced once more since: the phase is that again when somebody has asked.
		if st := n.State(); err == nil && st.Phase != Joined {
			err = fmt.Errorf("it is %s: %s", st.Phase, st.Message)
		}
		return err
	})
	n.joined()
}
