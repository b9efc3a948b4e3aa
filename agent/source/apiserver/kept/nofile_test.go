package kept

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNoFile has what is no file be where the pods or the key are: it is put aside, or said, and nobody waits for it.
func TestNoFile(t *testing.T) {
	pipe := func(path string) error { return unix.Mkfifo(path, 0o600) }
	folder := func(path string) error { return os.Mkdir(path, 0o700) }
	for name, place := range map[string]func(string) error{"pipe": pipe, "directory": folder} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, podsFile)
			s, _ := open(t, Config{Dir: dir})
			write(s, podNamed("a"))
			must(t, os.Remove(path))
			must(t, place(path))
			write(s, podNamed("a"), podNamed("b")) // by who has it as a file; the next one makes it anew, if it can

			must(t, os.RemoveAll(path))
			must(t, place(path))
			s, log := open(t, Config{Dir: dir})
			if got := s.Load(); got != nil || !strings.Contains(log.String(), path) {
				t.Errorf("%s, %s", names(got), log)
			}
			write(s, podNamed("c"))
			s, _ = open(t, Config{Dir: dir})
			if got := names(s.Load()); got != "c" {
				t.Errorf("%q is kept", got)
			}

			key := filepath.Join(dir, keyFile)
			must(t, os.Remove(key))
			must(t, place(key))
			s, log = open(t, Config{Dir: dir})
			if !strings.Contains(log.String(), key) {
				t.Errorf("a key that is none: %s", log)
			}
			write(s, podNamed("d"))
			s, _ = open(t, Config{Dir: dir})
			if got := names(s.Load()); got != "d" {
				t.Errorf("%q is kept", got)
			}
		})
	}
}
