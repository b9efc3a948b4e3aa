package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func isFile(t *testing.T, path string, want bool) {
	t.Helper()
	if _, err := os.Lstat(path); (err == nil) != want {
		t.Errorf("%s: %v", path, err)
	}
}

// joined checks a node that has joined, and what is on its disk.
func (n *node) joined() {
	n.t.Helper()
	n.phase(Joined)
	if who, err := n.who(); err != nil || who != "system:node:n1" {
		n.t.Errorf("the server takes the node for %q: %v", who, err)
	}
	until(n.t, "the pending key is gone", func() error {
		if _, err := os.Lstat(n.member.store.pendingPath()); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
	at, err := os.Readlink(n.member.store.currentPath())
	if err != nil || !filepath.IsAbs(at) || !strings.HasPrefix(filepath.Base(at), "kubelet-client-2") {
		n.t.Errorf("the current certificate is %q: %v", at, err)
	}
	for _, path := range []string{at, n.cfg.Kubeconfig} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			n.t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	left, _ := filepath.Glob(filepath.Join(n.dir, "*", ".*"))
	if len(left) > 0 {
		n.t.Errorf("left: %v", left)
	}
}

func (n *node) connect() {
	n.t.Helper()
	if _, err := n.who(); err != nil {
		n.t.Fatal(err)
	}
}

func TestBootstrap(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	s.answers(nil)
	n.bootstrap(s)
	n.start()
	n.phase(WaitingApproval)
	if st := n.State(); !strings.Contains(st.Message, "kubectl certificate approve "+s.asked()[0]) {
		t.Error(st.Message)
	}
	// Clients of other kinds are told at once; ours wait.
	r, err := n.Config().Transport.RoundTrip(nil)
	if !errors.Is(err, ErrNotJoined) {
		t.Errorf("%v, %v", r, err)
	}
	waits := make(chan error, 1)
	go func() { _, err := n.who(); waits <- err }()
	s.later(s.approve)
	if err := <-waits; err != nil {
		t.Error(err)
	}
	n.joined()
	if st := n.State(); st.Server != "https://"+s.address || st.NotAfter.IsZero() {
		t.Errorf("%+v", st)
	}
	got := &corev1.Node{}
	err = n.Get(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, types.NamespacedName{Name: "x"}, got)
	if err != nil || !strings.HasPrefix(got.Annotations["agent"], "berth/v1.2.3 (linux/") {
		t.Errorf("%v, %v", got.Annotations, err)
	}
	csr := s.csrs[s.asked()[0]]
	if csr.Spec.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" ||
		fmt.Sprint(csr.Spec.Usages) != "[digital signature client auth]" || requested(csr).Subject.String() != "CN=system:node:n1,O=system:nodes" {
		t.Errorf("%+v", csr.Spec)
	}
	// The next start needs the token no more.
	n.stopped()
	s.tokens = nil
	n.start()
	n.connect()
	n.joined()
	if len(s.asked()) != 1 {
		t.Error(s.asked())
	}
}

func TestDenied(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	denials := 0
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		if denials++; denials <= 2 {
			condition(csr, certificatesv1.CertificateDenied)
		}
	})
	n.bootstrap(s)
	n.start()
	until(t, "a third request", func() error {
		if len(s.asked()) < 3 {
			return errors.New(n.State().Message)
		}
		return nil
	})
	if n.lines.count("Denied") == 0 && n.lines.count("denied") == 0 {
		t.Error("nobody was told")
	}
	n.phase(WaitingApproval)
	s.later(s.approve)
	n.connect()
	n.joined()
	if a := s.asked(); a[0] == a[1] || a[1] == a[2] {
		t.Errorf("a key that was denied was used again: %v", a)
	}
}

// TestNeverApproved has a request that nobody approves while the node is killed again and again: it stays one request.
func TestNeverApproved(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	s.answers(nil)
	n.bootstrap(s)
	for range 3 {
		n.start()
		n.phase(WaitingApproval)
		n.stopped()
	}
	if len(s.asked()) != 1 {
		t.Errorf("asked %v", s.asked())
	}
	s.later(s.approve) // while it is down
	n.start()
	n.connect()
	n.joined()
}

func TestTokenEnded(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.bootstrap(s)
	s.mu.Lock()
	delete(s.tokens, token)
	s.mu.Unlock()
	n.start()
	until(t, "the token is named", func() error {
		if st := n.State(); !strings.Contains(st.Message, "has ended, or the API server does not know it") {
			return errors.New(st.Message)
		}
		return nil
	})
	// Another token in the file is taken at once.
	s.mu.Lock()
	s.tokens["fedcba.0123456789abcdef"] = true
	s.mu.Unlock()
	n.replace(n.cfg.BootstrapKubeconfig, s.kubeconfig("token: fedcba.0123456789abcdef"))
	n.connect()
	n.joined()
	if c := n.lines.count("client certificate was not had"); c != 1 {
		t.Errorf("told %d times", c)
	}
}

// TestKilled starts from what each step leaves on the disk when the process is killed after it.
func TestKilled(t *testing.T) {
	s := newAPIServer(t)
	at := func(step string, prepare func(n *node, st *store, key, cert []byte), requests int) {
		t.Run(step, func(t *testing.T) {
			n := newNode(t)
			n.bootstrap(s)
			st := &store{dir: n.cfg.CertDir, name: "kubelet-client"}
			key, err := st.pending()
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(st.pendingPath())
			if err != nil {
				t.Fatal(err)
			}
			cert := s.ca.sign(client("n1", time.Now().Add(-time.Minute), time.Now().Add(time.Hour)), key.Public())
			prepare(n, st, data, cert)
			before := len(s.asked())
			n.start()
			n.connect()
			n.joined()
			if got := len(s.asked()) - before; got != requests {
				t.Errorf("asked %d times, not %d", got, requests)
			}
		})
	}
	dated := func(st *store) string { return filepath.Join(st.dir, st.name+"-2020-01-01-00-00-00.pem") }
	at("key", func(*node, *store, []byte, []byte) {}, 1)
	at("half a key", func(n *node, st *store, key, _ []byte) { n.write(st.pendingPath(), string(key[:40])) }, 1)
	at("no key yet", func(_ *node, st *store, _, _ []byte) { _ = os.Remove(st.pendingPath()) }, 1)
	at("parts", func(n *node, st *store, _, _ []byte) {
		n.write(filepath.Join(st.dir, ".kubelet-client.123.part"), "half")
		n.write(filepath.Join(n.dir, "etc", ".kubelet.conf.77.part"), "half")
	}, 1)
	at("certificate", func(n *node, st *store, key, cert []byte) { n.write(dated(st), string(cert)+string(key)) }, 1)
	at("link", func(n *node, st *store, key, cert []byte) {
		n.write(dated(st), string(cert)+string(key))
		if err := st.use(dated(st)); err != nil {
			t.Fatal(err)
		}
	}, 0)
	at("dangling link", func(_ *node, st *store, _, _ []byte) { _ = os.Symlink("/none", st.currentPath()) }, 1)
	at("kubeconfig", func(n *node, st *store, key, cert []byte) {
		n.write(dated(st), string(cert)+string(key))
		_ = st.use(dated(st))
		p := st.currentPath()
		n.write(n.cfg.Kubeconfig, s.kubeconfig("client-certificate: "+p+", client-key: "+p))
		_ = os.Remove(st.pendingPath())
	}, 0)
	at("certificate of another cluster", func(n *node, st *store, _, _ []byte) {
		n.write(dated(st), string(newAuthority(t).pair(t, client("n1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour)))))
		_ = st.use(dated(st))
	}, 1)
}

// TestHostileCertificates has the API server answer with what is no certificate of this node.
func TestHostileCertificates(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		says string
		make func(s *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte
	}{
		"other key": {"not for the key", func(s *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte {
			return s.ca.sign(granted(csr), newKey(t).Public())
		}},
		"other name": {`it is for "system:node:other"`, func(s *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte {
			return s.ca.sign(client("other", now, now.Add(time.Hour)), requested(csr).PublicKey)
		}},
		"ended": {"has ended", func(s *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte {
			return s.ca.sign(client("n1", now.Add(-2*time.Hour), now.Add(-time.Hour)), requested(csr).PublicKey)
		}},
		"garbage": {"read the certificate", func(*apiServer, *certificatesv1.CertificateSigningRequest) []byte {
			return []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
		}},
		"no group": {"group system:nodes", func(s *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte {
			c := granted(csr)
			c.Subject.Organization = nil
			return s.ca.sign(c, requested(csr).PublicKey)
		}},
		"for servers": {"not good for client auth", func(s *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte {
			c := granted(csr)
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			return s.ca.sign(c, requested(csr).PublicKey)
		}},
		"other authority": {"does not know the certificate", func(_ *apiServer, csr *certificatesv1.CertificateSigningRequest) []byte {
			return newAuthority(t).sign(granted(csr), requested(csr).PublicKey)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := newAPIServer(t), newNode(t)
			s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
				condition(csr, certificatesv1.CertificateApproved)
				csr.Status.Certificate = c.make(s, csr)
			})
			n.bootstrap(s)
			n.start()
			until(t, "it is told", func() error {
				if st := n.State(); !strings.Contains(st.Message, c.says) {
					return errors.New(st.Message)
				}
				return nil
			})
			isFile(t, n.cfg.Kubeconfig, false)
			isFile(t, n.member.store.currentPath(), false)
			s.answers(s.approve)
			n.connect()
			n.joined()
		})
	}
}

func TestHugeAnswer(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	n.write(n.cfg.Kubeconfig, s.withPair(s.ca.pair(t, client("n1", time.Now().Add(-time.Minute), time.Now().Add(time.Hour)))))
	s.huge = true
	n.start()
	if _, err := n.who(); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Error(err)
	}
}

// TestEndlessWatch has a watch that never says anything: who asks for a certificate can be stopped.
func TestEndlessWatch(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	s.answers(nil)
	n.bootstrap(s)
	n.start()
	n.phase(WaitingApproval)
	until(t, "a watch", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watchers == 0 {
			return errors.New("none")
		}
		return nil
	})
	n.stopped()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Ready(ctx); !errors.Is(err, ErrNotJoined) {
		t.Error(err)
	}
}

// TestLongSay has an API server whose words have no end.
func TestLongSay(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		condition(csr, certificatesv1.CertificateDenied)
		csr.Status.Conditions[0].Message = strings.Repeat("no ", 1<<20)
	})
	n.bootstrap(s)
	n.start()
	n.phase(Denied)
	if st := n.State(); len(st.Message) > 2*maxTold {
		t.Error(len(st.Message))
	}
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		s.approve(csr)
		csr.Status.Certificate = []byte(strings.Repeat(string(csr.Status.Certificate), 1000))
	})
	until(t, "it is too long", func() error {
		if st := n.State(); !strings.Contains(st.Message, "too much") {
			return errors.New(st.Message)
		}
		return nil
	})
}

// TestDueAtOnce has a signer whose certificates are due as soon as they are made.
func TestDueAtOnce(t *testing.T) {
	s, n := newAPIServer(t), newNode(t)
	s.answers(func(csr *certificatesv1.CertificateSigningRequest) {
		condition(csr, certificatesv1.CertificateApproved)
		csr.Status.Certificate = s.ca.sign(old(), requested(csr).PublicKey)
	})
	n.bootstrap(s)
	n.long = time.Hour
	n.start()
	until(t, "a renewal", func() error {
		if len(s.asked()) < 2 {
			return errors.New("none")
		}
		return nil
	})
	n.connect()
	n.phase(Joined)
	if got := len(s.asked()); got != 2 {
		t.Errorf("asked %d times", got)
	}
}
