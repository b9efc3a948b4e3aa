package main

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeyOfSecrets has it made for a new cluster alone: one that is lost, or cannot be read, is named, and nothing is
// put in its place.
func TestKeyOfSecrets(t *testing.T) {
	for name, c := range map[string]struct {
		make func(d data) error
		ok   bool
	}{
		"new":                 {func(data) error { return nil }, true},
		"is a pipe":           {func(d data) error { return unix.Mkfifo(d.encryption(), 0o600) }, false},
		"is a directory":      {func(d data) error { return os.Mkdir(d.encryption(), 0o700) }, false},
		"is empty":            {func(d data) error { return os.WriteFile(d.encryption(), nil, 0o600) }, false},
		"is gone":             {func(d data) error { return os.WriteFile(d.authority(), nil, 0o600) }, false},
		"is gone with ca.pem": {func(d data) error { return os.WriteFile(d.trust(), nil, 0o600) }, false},
	} {
		d := data{t.TempDir()}
		if err := errors.Join(os.Mkdir(d.pki(), 0o700), c.make(d)); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(d.encryption())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		path, err := encryption(d, "")
		if c.ok {
			if text, rerr := os.ReadFile(path); err != nil || rerr != nil || !strings.Contains(string(text), "secretbox") {
				t.Errorf("%s: %q, %v, %v", name, text, err, rerr)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), d.encryption()) || !strings.Contains(err.Error(), "copy") {
			t.Errorf("the key %s: %v", name, err)
		}
		after, err := os.Lstat(d.encryption())
		if (before == nil) != (err != nil) || before != nil && !os.SameFile(before, after) {
			t.Errorf("the key %s, and another one is there", name)
		}
	}
}
