package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTaken: what a group has of the memory, counted in three ways, of a group with swap and of one whose kernel has
// no account of it.
func TestTaken(t *testing.T) {
	base := t.TempDir()
	mounts, err := parseMountinfo(strings.NewReader(strings.ReplaceAll(mountsUnified, " B", " "+base)), base)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cgroup.controllers":             "cpu memory pids\n",
		"swaps/memory.current":           "1000\n",
		"swaps/memory.stat":              "anon 600\nfile 400\ninactive_file 100\nactive_file 250\n",
		"swaps/memory.swap.current":      "5000\n",
		"unaccounted/memory.current":     "1000\n",
		"unaccounted/memory.stat":        "inactive_file 100\nactive_file 250\n",
		"unreadable/memory.current":      "1000\n",
		"unreadable/memory.stat":         "inactive_file 100\nactive_file 250\n",
		"unreadable/memory.swap.current": "?\n",
	} {
		path := filepath.Join(base, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := detect(base, mounts, func(string, int64) (bool, error) { return true, nil })
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string][3]uint64{"/swaps": {900, 650, 5650}, "/unaccounted": {900, 650, 650}} {
		for i, read := range []func(*Hierarchy, string) (uint64, error){WorkingSet, Unreclaimable, Taken} {
			if got, err := read(h, group); err != nil || got != want[i] {
				t.Errorf("%s, reading %d: %d, %v, want %d", group, i, got, err, want[i])
			}
		}
	}
	if got, err := Taken(h, "/unreadable"); err == nil {
		t.Errorf("swap that is no number: %d", got)
	}
	if _, err := Taken(h, "/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that is gone: %v", err)
	}
}
