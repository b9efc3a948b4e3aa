package pki

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// copyDir copies the files of a directory into a new one.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// verify has who trusts some certificates verify a file, as clients and servers do: with what is shown beside it.
func verify(t *testing.T, s *Store, name string, trusted ...[]byte) error {
	t.Helper()
	p, err := readPair(s.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, text := range trusted {
		roots.AppendCertsFromPEM(text)
	}
	for _, c := range p.chain {
		between.AddCert(c)
	}
	_, err = p.cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// step is one of a rotation.
type step func(s *Store) error

func rotation(t *testing.T, s *Store, name string) []step {
	t.Helper()
	_, next, err := s.MakeNext(name)
	if err != nil {
		t.Fatal(err)
	}
	return []step{
		func(s *Store) error { return s.Stage(name, next) },
		func(s *Store) error { return s.Switch(name) },
		func(s *Store) error { return s.Retire(name) },
	}
}

// TestRotate rotates each authority. Who trusts the old one only, or the new one only, takes what both have signed for
// as long as it is to be so, and not longer.
func TestRotate(t *testing.T) {
	for _, name := range authorities() {
		s := open(t, t.TempDir(), time.Now(), "kubernetes")
		var signed []string
		for _, l := range leaves() {
			if l.authority == name {
				signed = append(signed, l.name)
			}
		}
		old := read(t, s.TrustPath(name))
		leaf := read(t, s.Path(signed[0]))
		do := rotation(t, s, name)
		for _, again := range []int{0, 1} { // each step may be repeated
			if err := do[0](s); err != nil && again == 0 {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(leaf, read(t, s.Path(signed[0]))) {
			t.Errorf("%s: what only is to follow signs", name)
		}
		both := read(t, s.TrustPath(name))
		certs, err := parseCerts(both)
		if err != nil || len(certs) != 2 {
			t.Fatalf("%s: %d are trusted: %v", name, len(certs), err)
		}
		next := encodeCert(certs[1])
		if err := s.Retire(name); err == nil {
			t.Errorf("%s: an authority retires before there is another", name)
		}
		for range 2 {
			if err := do[1](s); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range signed {
			for who, trusted := range map[string][]byte{"the old one": old, "the new one": next, "both": both} {
				if err := verify(t, s, l, trusted); err != nil {
					t.Errorf("%s is not taken by who trusts %s: %v", l, who, err)
				}
			}
		}
		if text := read(t, s.Path(name)); bytes.Count(text, []byte("BEGIN CERTIFICATE")) != 1 {
			t.Errorf("%s has more than one certificate", name)
		}
		for range 2 {
			if err := do[2](s); err != nil {
				t.Fatal(err)
			}
		}
		if got := read(t, s.TrustPath(name)); !bytes.Equal(got, next) {
			t.Errorf("%s: trusted are\n%s", name, got)
		}
		for _, l := range signed {
			if err := verify(t, s, l, next); err != nil {
				t.Errorf("%s: %v", l, err)
			}
			// Members of etcd that run know the old one alone until they are started again.
			if err := verify(t, s, l, old); (err == nil) != (name == EtcdAuthority) {
				t.Errorf("%s by who trusts the old one: %v", l, err)
			}
		}
		// And once more, during which members of etcd know each other, too.
		for i, do := range rotation(t, s, name) {
			if err := do(s); err != nil {
				t.Fatalf("%s again, step %d: %v", name, i, err)
			}
			if err := verify(t, s, signed[0], old); (err == nil) != (name == EtcdAuthority) {
				t.Errorf("%s again, step %d: by who trusts the first one: %v", signed[0], i, err)
			}
		}
		if made, err := s.Renew(false); err != nil || len(made) > 0 {
			t.Errorf("made again for nothing are %v, %v", made, err)
		}
		for _, before := range [][]byte{next, old} {
			if err := verify(t, s, signed[0], before); (err == nil) != (name == EtcdAuthority) {
				t.Errorf("%s by who trusts one before: %v", signed[0], err)
			}
		}
	}
}

// TestRotateTokenKey: tokens of both keys are good until the end.
func TestRotateTokenKey(t *testing.T) {
	s := open(t, t.TempDir(), time.Now())
	keys := func() (string, []string) {
		active, others, err := s.TokenKeys()
		if err != nil {
			t.Fatal(err)
		}
		id, err := keyID(active.Public())
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, o := range others {
			other, err := keyID(o)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, other)
		}
		return id, all
	}
	old, _ := keys()
	id, next, err := s.MakeNext(TokenKey)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		do     func() error
		active string
		others []string
	}{
		{func() error { return s.Stage(TokenKey, next) }, old, []string{id}},
		{func() error { return s.Switch(TokenKey) }, id, []string{old}},
		{func() error { return s.Retire(TokenKey) }, id, nil},
	} {
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		if active, others := keys(); active != c.active || !slices.Equal(others, c.others) {
			t.Errorf("step %d: %s signs, and %v are good", i, active, others)
		}
	}
}

// TestRotateKilled stops a rotation after each write of a file, as kill -9 does, opens the directory again and goes on:
// it ends as it would have, and until then both are trusted.
func TestRotateKilled(t *testing.T) {
	for _, name := range Rotated() {
		before := open(t, t.TempDir(), time.Now(), "kubernetes")
		do := rotation(t, before, name)
		for at := range do {
			if at > 0 {
				if err := do[at-1](before); err != nil {
					t.Fatal(err)
				}
			}
			killed := copyDir(t, before.dir)
			after := copyDir(t, before.dir)
			s := open(t, after, time.Now(), "kubernetes")
			if err := do[at](s); err != nil {
				t.Fatal(err)
			}
			want, err := s.State(name)
			if err != nil {
				t.Fatal(err)
			}
			// Any of the files that a step writes may be there, and any other not: more than a kill can do.
			for _, some := range subsets(changed(t, killed, after)) {
				if !ordered(name, at, some) {
					continue
				}
				dir := copyDir(t, killed)
				for _, f := range some {
					put(t, after, dir, f)
				}
				what := fmt.Sprintf("%s, step %d with %v", name, at, some)
				s, err := Open(dir, Options{Hosts: []string{"kubernetes"}, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				if err := do[at](s); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if got, err := s.State(name); err != nil || got != want {
					t.Errorf("%s: %+v, %v, want %+v", what, got, err, want)
				}
				if name != TokenKey && !bytes.Equal(read(t, s.TrustPath(name)), read(t, filepath.Join(after, name+".crt"))) {
					t.Errorf("%s: others are trusted", what)
				}
			}
		}
	}
}

// ordered says whether a kill may leave just these of the files that a step writes: the files that decide come in the
// order of the steps, and what follows from them later.
func ordered(name string, at int, some []string) bool {
	has := func(f string) bool { return slices.Contains(some, f) }
	next, old, active, retired := name+".next.pem", name+".old.pem", name+".pem", name+".retired.crt"
	follows := slices.ContainsFunc(some, func(f string) bool { return f != next && f != old && f != active && f != retired })
	switch at {
	case 0:
		return has(next) || !follows
	case 1: // old, active, next removed
		return (has(old) || !has(active)) && (has(active) || !has(next) && !follows)
	default: // retired, old removed
		return (has(retired) || name == TokenKey || !has(old)) && (has(old) || !follows)
	}
}

// changed are the files that differ between two directories.
func changed(t *testing.T, a, b string) []string {
	t.Helper()
	names := map[string]bool{}
	for _, dir := range []string{a, b} {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			names[e.Name()] = true
		}
	}
	var out []string
	for f := range names {
		x, _ := os.ReadFile(filepath.Join(a, f))
		y, _ := os.ReadFile(filepath.Join(b, f))
		if !bytes.Equal(x, y) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

func subsets(of []string) [][]string {
	var all [][]string
	for mask := range 1 << len(of) {
		var some []string
		for i, f := range of {
			if mask&(1<<i) != 0 {
				some = append(some, f)
			}
		}
		all = append(all, some)
	}
	return all
}

// put has a file in a directory be as in another, or not there.
func put(t *testing.T, from, to, name string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(from, name))
	if os.IsNotExist(err) {
		err = os.Remove(filepath.Join(to, name))
	} else if err == nil {
		err = os.WriteFile(filepath.Join(to, name), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRotateRefuses stages what the authority that is there has not vouched for, and tears the files of a rotation.
func TestRotateRefuses(t *testing.T) {
	s := open(t, t.TempDir(), time.Now())
	other := open(t, t.TempDir(), time.Now())
	_, foreign, err := other.MakeNext(ClusterAuthority)
	if err != nil {
		t.Fatal(err)
	}
	own := read(t, s.Path(ClusterAuthority))
	leaf := read(t, s.Path(Admin))
	for what, file := range map[string][]byte{"of another cluster": foreign, "itself": own, "no authority": leaf, "nothing": nil} {
		if err := s.Stage(ClusterAuthority, file); err == nil {
			t.Errorf("the next one is %s, and taken", what)
		}
	}
	if err := s.Stage(TokenKey, own); err == nil {
		t.Error("an authority is taken for the key of tokens")
	}
	_, next, err := s.MakeNext(ClusterAuthority)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stage(ClusterAuthority, next); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path("ca.next"), next[:len(next)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(s.dir, Options{Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), s.Path("ca.next")) {
		t.Errorf("the next one is torn: %v", err)
	}
}

// TestDamagedRetired damages what is kept of former authorities. It is put aside, and does not stop the rest: neither a
// start nor the next rotation.
func TestDamagedRetired(t *testing.T) {
	for _, damage := range []func([]byte) []byte{
		func(b []byte) []byte { return b[:len(b)/2] },
		func(b []byte) []byte { return bytes.ToUpper(b) },
		func(b []byte) []byte { b = slices.Clone(b); copy(b[100:], "////"); return b },
	} {
		for _, name := range authorities() {
			dir := t.TempDir()
			s := open(t, dir, time.Now())
			for _, do := range rotation(t, s, name) {
				if err := do(s); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, retiredName(name))
			torn := damage(read(t, path))
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, time.Now())
			if aside, _ := filepath.Glob(path + ".bad-*"); len(aside) != 1 || !bytes.Equal(read(t, aside[0]), torn) {
				t.Errorf("%s is not put aside: %q", path, aside)
			}
			for _, do := range rotation(t, s, name) {
				if err := do(s); err != nil {
					t.Errorf("%s: the next rotation: %v", name, err)
				}
			}
		}
	}
}
