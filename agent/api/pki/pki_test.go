package pki

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newAuthority(t *testing.T) (*Authority, *clock) {
	t.Helper()
	c := &clock{time.Now()}
	a, err := open(filepath.Join(t.TempDir(), "pki"), c.now)
	if err != nil {
		t.Fatal(err)
	}
	return a, c
}

func request(t *testing.T, cn string, o ...string) []byte {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: cn, Organization: o}, DNSNames: []string{"evil.example"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func verify(a *Authority, c *x509.Certificate, use x509.ExtKeyUsage) error {
	pool := x509.NewCertPool()
	for _, ca := range a.Trusted() {
		pool.AddCert(ca)
	}
	_, err := c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: a.now(), KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

func TestFilesOfTheAuthority(t *testing.T) {
	a, _ := newAuthority(t)
	for name, mode := range map[string]fs.FileMode{"": 0o700 | fs.ModeDir, authorityFile: 0o600, TrustFile: 0o644} {
		fi, err := os.Stat(filepath.Join(a.dir, name))
		if err != nil || fi.Mode() != mode {
			t.Errorf("%q: %v, %v", name, fi.Mode(), err)
		}
	}
	b, err := Open(a.dir)
	if err != nil || !b.current.cert.Equal(a.current.cert) {
		t.Errorf("the next start has another authority: %v", err)
	}
	// A crash between the two files.
	if err := errors.Join(os.Remove(filepath.Join(a.dir, TrustFile)),
		os.WriteFile(filepath.Join(a.dir, ".ca.pem.123"), []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b, err = Open(a.dir)
	if err != nil || len(b.Trusted()) != 1 || !b.Trusted()[0].Equal(a.current.cert) {
		t.Errorf("after a crash: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(a.dir, ".*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// A byte of what follows from the record is another one.
	damaged := bytes.Replace(encodeCerts(a.current.cert), []byte("M"), []byte("?"), 1)
	for _, text := range [][]byte{damaged, {}, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")} {
		if err := os.WriteFile(filepath.Join(a.dir, TrustFile), text, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err = Open(a.dir)
		if err != nil || len(b.Trusted()) != 1 || !b.Trusted()[0].Equal(a.current.cert) {
			t.Errorf("after damage: %v", err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(a.dir, TrustFile)); err != nil || !bytes.Equal(got, encodeCerts(a.current.cert)) {
		t.Errorf("after damage: %v, %s", err, got)
	}
	// What somebody else put there is not thrown away.
	if err := os.WriteFile(filepath.Join(a.dir, authorityFile), []byte("what is this"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(a.dir); err == nil || !strings.Contains(err.Error(), "remove it to have a new one") {
		t.Errorf("broken file: %v", err)
	}
}

func TestSignClient(t *testing.T) {
	a, c := newAuthority(t)
	out, err := a.SignClient(request(t, "ann", "system:masters", "ops"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := ParseCerts(out)
	if err != nil {
		t.Fatal(err)
	}
	got := certs[0]
	if got.Subject.CommonName != "ann" || len(got.Subject.Organization) != 2 || len(got.DNSNames) != 0 || got.IsCA {
		t.Errorf("%+v, %v", got.Subject, got.DNSNames)
	}
	if err := verify(a, got, x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
	if err := verify(a, got, x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("a client may serve")
	}
	c.t = c.t.Add(2 * time.Hour)
	if err := verify(a, got, x509.ExtKeyUsageClientAuth); err == nil {
		t.Error("it is good after its end")
	}
	for want, f := range map[string]func() ([]byte, error){
		"no common name":       func() ([]byte, error) { return a.SignClient(request(t, ""), time.Hour) },
		"no certificate":       func() ([]byte, error) { return a.SignClient([]byte("x"), time.Hour) },
		"cannot be valid for":  func() ([]byte, error) { return a.SignClient(request(t, "a"), 10*365*24*time.Hour) },
		"cannot be valid for ": func() ([]byte, error) { return a.SignClient(request(t, "a"), 0) },
	} {
		if _, err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestAuthorityIsFollowedByAnother(t *testing.T) {
	a, c := newAuthority(t)
	old := a.current.cert
	c.t = a.RenewAt().Add(-time.Second)
	if err := a.Renew(); err != nil || !a.current.cert.Equal(old) {
		t.Fatalf("renewed too early: %v", err)
	}
	out, err := a.SignClient(request(t, "ann"), MaxClientLifetime)
	if err != nil {
		t.Fatal(err)
	}
	c.t = c.t.Add(time.Second)
	if err := a.Renew(); err != nil || a.current.cert.Equal(old) || len(a.Trusted()) != 2 {
		t.Fatalf("not renewed: %v, %d trusted", err, len(a.Trusted()))
	}
	certs, _ := ParseCerts(out)
	if err := verify(a, certs[0], x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("what the old one signed: %v", err)
	}
	c.t = old.NotAfter.Add(time.Second)
	if err := a.Renew(); err != nil || len(a.Trusted()) != 1 {
		t.Errorf("the old one is trusted after its end: %v", err)
	}
}

func TestServing(t *testing.T) {
	a, c := newAuthority(t)
	names := Names{Node: "node", Hosts: []string{"10.0.0.5", "node.example", "127.0.0.1"}}
	serving := func() *x509.Certificate {
		t.Helper()
		s, err := NewServing(a, func() Names { return names }, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		cert, _ := s.Certificate(nil)
		return cert.Leaf
	}
	first := serving()
	for _, host := range []string{"node", "localhost", "node.example", "10.0.0.5", "::1"} {
		if err := first.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if err := verify(a, first, x509.ExtKeyUsageServerAuth); err != nil {
		t.Error(err)
	}
	if !serving().Equal(first) {
		t.Error("the next start has another certificate")
	}
	names.Hosts = []string{"10.0.0.6"}
	second := serving()
	if second.Equal(first) || second.VerifyHostname("10.0.0.6") != nil {
		t.Error("the new address is not in the certificate")
	}
	c.t = renewAt(second)
	third := serving()
	if third.Equal(second) {
		t.Error("it is not renewed")
	}
	c.t = a.RenewAt()
	if err := a.Renew(); err != nil {
		t.Fatal(err)
	}
	if !a.signed(serving()) {
		t.Error("it is not of the new authority")
	}
}

// TestClockJumps: what was made while the clock was years ahead is good when it is set right, or another one is made;
// so is what was made while it was years behind.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{-25 * 365 * 24 * time.Hour, 9 * 365 * 24 * time.Hour, 50 * 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var now atomic.Int64
			right := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
			now.Store(right.UnixNano())
			a, err := open(filepath.Join(t.TempDir(), "pki"), func() time.Time { return time.Unix(0, now.Load()) })
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewServing(a, func() Names { return Names{Node: "node"} }, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.Run(ctx, nil)
			}()
			good := func(when string) {
				t.Helper()
				for range 2 { // the first one who comes may find the old one
					_, _ = s.Certificate(nil)
					synctest.Wait()
				}
				c, _ := s.Certificate(nil)
				roots := x509.NewCertPool()
				for _, one := range a.Trusted() {
					roots.AddCert(one)
				}
				if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Unix(0, now.Load())}); err != nil {
					t.Errorf("%s, %s: %v", jump, when, err)
				}
			}
			good("before")
			now.Store(right.Add(jump).UnixNano())
			time.Sleep(2 * longest)
			synctest.Wait()
			if jump > 0 { // an authority does not begin before it was thought of
				good("while it is wrong")
			}
			now.Store(right.UnixNano())
			good("after")
			cancel()
			<-done
		})
	}
}

func TestServingRunsUntilTold(t *testing.T) {
	a, _ := newAuthority(t)
	names := make(chan Names, 1)
	names <- Names{Node: "one"}
	last := Names{}
	s, err := NewServing(a, func() Names {
		select {
		case last = <-names:
		default:
		}
		return last
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	renamed, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); s.Run(t.Context(), renamed) }()
	names <- Names{Node: "two"}
	renamed <- struct{}{}
	renamed <- struct{}{} // taken when the first has been dealt with
	if c, _ := s.Certificate(nil); c.Leaf.VerifyHostname("two") != nil {
		t.Error("still the old name")
	}
	t.Cleanup(func() { <-done })
}

// TestReadOnlyDirectory has nowhere to keep certificates for a while. The node has some all the same, the same ones
// when they can be kept, and the next start has them too.
func TestReadOnlyDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	disk := t.TempDir()
	if err := unix.Mount("t", disk, "tmpfs", unix.MS_RDONLY, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	c := &clock{time.Now()}
	log := slog.New(slog.DiscardHandler)
	names := func() Names { return Names{Node: "node"} }
	dir := filepath.Join(disk, "pki")
	start := func() (*Authority, *Serving, *x509.Certificate) {
		t.Helper()
		a, err := open(dir, c.now)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewServing(a, names, log)
		if err != nil {
			t.Fatal(err)
		}
		cert, _ := s.Certificate(nil)
		return a, s, cert.Leaf
	}
	a, s, first := start()
	if err := verify(a, first, x509.ExtKeyUsageServerAuth); err != nil || !errors.Is(a.Unkept(), unix.EROFS) {
		t.Errorf("on a disk that is read-only: %v, %v", err, a.Unkept())
	}
	again := func() {
		t.Helper()
		if err := errors.Join(a.Renew(), s.renew()); err != nil {
			t.Error(err)
		}
		if cert, _ := s.Certificate(nil); !cert.Leaf.Equal(first) || !a.signed(first) {
			t.Error("there is another certificate, or another authority")
		}
	}
	again()
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	again()
	if a.Unkept() != nil {
		t.Error(a.Unkept())
	}
	if b, _, next := start(); !next.Equal(first) || !b.current.cert.Equal(a.current.cert) {
		t.Error("the next start has other certificates")
	}
	// What is due when nothing can be written lasts as long as the process.
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	c.t = renewAt(first)
	a, _, second := start()
	if err := verify(a, second, x509.ExtKeyUsageServerAuth); err != nil || second.Equal(first) {
		t.Errorf("not renewed: %v", err)
	}
}

// TestDamagedServing has a serving certificate that cannot be read: it is nobody's but the node's.
func TestDamagedServing(t *testing.T) {
	a, _ := newAuthority(t)
	path := filepath.Join(a.dir, servingFile)
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := NewServing(a, func() Names { return Names{Node: "node"} }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if p, ok, err := readPair(path); err != nil || !ok || !p.cert.Equal(s.current.Load().Leaf) {
		t.Errorf("the file has another: %v, %v", ok, err)
	}
}

func TestReplacedFiles(t *testing.T) {
	a, _ := newAuthority(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(node string) {
		t.Helper()
		p, err := a.signServer(Names{Node: node})
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(p.key)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(replace(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600),
			replace(cert, encodeCerts(p.cert), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	read := make(chan *tls.Certificate, 100)
	f, err := NewFiles(func() (*tls.Certificate, error) {
		c, err := LoadPair(cert, key)
		if err == nil {
			read <- c
		}
		return c, err
	}, slog.New(slog.DiscardHandler), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	write("two")
	for c := range read {
		if c.Leaf.VerifyHostname("two") == nil {
			break
		}
	}
	if _, err := NewFiles(func() (*tls.Certificate, error) { return LoadPair(cert, "/none") },
		slog.New(slog.DiscardHandler), cert); err == nil {
		t.Error("a key that is not there was taken")
	}
}
