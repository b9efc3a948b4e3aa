package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/control/pki"
)

func someBundle() bundle {
	b := bundle{Files: map[string][]byte{"encryption.yaml": []byte("e")}, Etcd: []string{"https://192.0.2.1:2379"}}
	for _, name := range pki.Shared() {
		b.Files[name] = []byte(name)
	}
	return b
}

// TestBundle seals what members share and opens it: with the key and for the token that it was sealed for alone, whole,
// and with nothing in it that is not shared.
func TestBundle(t *testing.T) {
	k := newSealKey()
	sealed, err := k.seal(someBundle(), "abcdef")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseSealKey(k.String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := parsed.open(sealed, "abcdef")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	for range 2 {
		if err := b.unpack(dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range someBundle().Files {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for i := range sealed {
		flipped := append([]byte(nil), sealed...)
		flipped[i] ^= 1
		if _, err := k.open(flipped, "abcdef"); err == nil {
			t.Fatalf("it opens with byte %d flipped", i)
		}
	}
	for n := range sealed {
		if _, err := k.open(sealed[:n], "abcdef"); err == nil {
			t.Fatalf("it opens with %d bytes of it", n)
		}
	}
	if _, err := k.open(sealed, "ghijkl"); err == nil {
		t.Error("it opens for another token")
	}
	if _, err := newSealKey().open(sealed, "abcdef"); err == nil {
		t.Error("it opens with another key")
	}
	for name, spoil := range map[string]func(*bundle){
		"is missing":       func(b *bundle) { delete(b.Files, "ca.pem") },
		"is none of it":    func(b *bundle) { b.Files["../../x"] = nil },
		"takes others":     func(b *bundle) { b.Etcd = nil },
		"sa.pem is missin": func(b *bundle) { b.Files["sa.pem"] = nil },
	} {
		b := someBundle()
		spoil(&b)
		sealed, err := k.seal(b, "abcdef")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.open(sealed, "abcdef"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
}

// TestPlace keeps what is said once of a member's place, and refuses a record that nobody can read.
func TestPlace(t *testing.T) {
	d, log := data{t.TempDir()}, slog.New(slog.DiscardHandler)
	if m, err := d.place(member{PeerPort: defaultPeerPort, EtcdPort: defaultEtcdPort}, log); err != nil || m.Address != "" {
		t.Errorf("got %+v, %v", m, err)
	}
	said := member{Address: "192.0.2.1", PeerPort: 1, EtcdPort: 2}
	for _, flags := range []member{said, {PeerPort: defaultPeerPort, EtcdPort: defaultEtcdPort}} {
		if m, err := d.place(flags, log); err != nil || m.Address != said.Address || m.PeerPort != 1 || m.EtcdPort != 2 {
			t.Errorf("%+v: got %+v, %v", flags, m, err)
		}
	}
	if err := errors.Join(os.Remove(d.member()), unix.Mkfifo(d.member(), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.place(member{}, log); err == nil || !strings.Contains(err.Error(), d.member()) {
		t.Errorf("a pipe: got %v", err)
	}
	if err := os.Remove(d.member()); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"address": 1}`} {
		if err := os.WriteFile(d.member(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.place(member{}, log); err == nil || !strings.Contains(err.Error(), d.member()) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
