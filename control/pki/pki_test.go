package pki

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func open(t *testing.T, dir string, now time.Time, hosts ...string) *Store {
	t.Helper()
	s, err := Open(dir, Options{Hosts: hosts, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestKept opens the directory of an earlier start: everything stays, until it is about to end.
func TestKept(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s := open(t, dir, now, "kubernetes", "10.0.0.1")
	before := read(t, s.Path(Serving))
	open(t, dir, now.Add(leafLife/2), "kubernetes")
	if !bytes.Equal(before, read(t, s.Path(Serving))) {
		t.Error("a certificate is made again long before it ends")
	}
	open(t, dir, now, "kubernetes", "10.0.0.2")
	after := read(t, s.Path(Serving))
	if bytes.Equal(before, after) {
		t.Error("a host that is new is not in the certificate")
	}
	authority := read(t, s.Path(ClusterAuthority))
	open(t, dir, now.Add(leafLife), "kubernetes")
	if bytes.Equal(after, read(t, s.Path(Serving))) {
		t.Error("a certificate that ends is not renewed")
	}
	if !bytes.Equal(authority, read(t, s.Path(ClusterAuthority))) {
		t.Error("the authority is another one")
	}
}

// TestOtherUser opens the directory of a program whose API server was another user for kubelets.
func TestOtherUser(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s := open(t, dir, now)
	by, err := readPair(s.Path(ClusterAuthority))
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.sign(leaf{
		Kubelet, ClusterAuthority,
		pkix.Name{CommonName: KubeletClient, Organization: []string{"system:masters"}},
		[]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, by)
	if err == nil {
		err = before.write(s.Path(Kubelet))
	}
	if err != nil {
		t.Fatal(err)
	}
	open(t, dir, now)
	after, err := readPair(s.Path(Kubelet))
	if err != nil || len(after.cert.Subject.Organization) > 0 || after.cert.Subject.CommonName != KubeletClient {
		t.Errorf("the API server is %v for kubelets, %v", after.cert.Subject, err)
	}
}

// TestChain verifies each certificate as its reader does, and the modes of the files.
func TestChain(t *testing.T) {
	s := open(t, t.TempDir(), time.Now(), "kubernetes.default.svc", "127.0.0.1")
	for _, l := range leaves() {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(read(t, s.TrustPath(l.authority)))
		p, err := readPair(s.Path(l.name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: l.usage}); err != nil {
			t.Errorf("%s: %v", l.name, err)
		}
		if info, err := os.Stat(s.Path(l.name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", l.name, info.Mode(), err)
		}
	}
	if _, err := s.ServiceAccountKey(); err != nil {
		t.Error(err)
	}
}

// TestDamage tears and flips each file. An authority is named and kept as it is, everything else is made again.
func TestDamage(t *testing.T) {
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { return b[:len(b)/2] },
		func([]byte) []byte { return nil },
		func(b []byte) []byte { b = slices.Clone(b); b[100] ^= 1; return b },
	} {
		for _, name := range []string{ClusterAuthority, FrontProxyAuthority, "sa", Serving, Admin} {
			dir, now := t.TempDir(), time.Now()
			s := open(t, dir, now)
			torn := damage(read(t, s.Path(name)))
			if err := os.WriteFile(s.Path(name), torn, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(dir, Options{Log: slog.New(slog.DiscardHandler)})
			if name == Serving || name == Admin {
				// What parses is of another authority to whoever verifies it, and not put aside.
				p, again := readPair(s.Path(name))
				ca, _, caErr := s.Authority(ClusterAuthority)
				if err != nil || again != nil || caErr != nil || p.cert.CheckSignatureFrom(ca) != nil {
					t.Errorf("%s is damaged and not made again: %v, %v", name, err, again)
				}
				if aside, _ := filepath.Glob(s.Path(name) + ".bad-*"); len(aside) != 1 && !parses(torn) {
					t.Errorf("%s is not put aside: %v", name, aside)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), s.Path(name)) {
				t.Errorf("%s is damaged, and the error is %v", name, err)
			}
			if !bytes.Equal(torn, read(t, s.Path(name))) {
				t.Errorf("%s was replaced", name)
			}
		}
	}
}

// TestPipe puts a pipe that nobody writes to in the place of each file. It is named, or another file is in its place.
func TestPipe(t *testing.T) {
	names := []string{ClusterAuthority + ".crt"}
	for _, name := range append(Rotated(), Serving, EtcdMember, ClusterAuthority+nextSuffix, ClusterAuthority+oldSuffix) {
		names = append(names, name+".pem")
	}
	for _, name := range append(names, retiredName(EtcdAuthority)) {
		dir := t.TempDir()
		open(t, dir, time.Now())
		path := filepath.Join(dir, name)
		if err := errors.Join(os.RemoveAll(path), unix.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil && strings.Contains(err.Error(), path) {
			continue
		}
		if st, serr := os.Lstat(path); err != nil || serr == nil && !st.Mode().IsRegular() {
			t.Errorf("%s is a pipe: %v", name, err)
		}
	}
}

func parses(data []byte) bool {
	_, err := parsePair(data)
	return err == nil
}

// TestLostAuthority removes an authority's key, with what others trust and without.
func TestLostAuthority(t *testing.T) {
	for _, name := range authorities() {
		for _, trust := range []bool{false, true} {
			dir := t.TempDir()
			s := open(t, dir, time.Now())
			err := os.Remove(s.Path(name))
			if trust {
				err = errors.Join(err, os.Remove(s.TrustPath(name)))
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, Options{Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), s.Path(name)) {
				t.Errorf("%s was made in place of one that is trusted: %v", name, err)
			}
		}
	}
}

func FuzzPair(f *testing.F) {
	s, err := Open(f.TempDir(), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(s.Path(Admin))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = parsePair(data) })
}
