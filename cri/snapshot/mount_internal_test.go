package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOldMount is what kernels without lowerdir+ get, with few layers and with more than fit into a page.
func TestOldMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts filesystems")
	}
	for _, n := range []int{2, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			root := t.TempDir()
			var dirs []string
			for i := range n {
				d := filepath.Join(root, fmt.Sprint(1000+i), "fs")
				if err := errors.Join(os.MkdirAll(d, 0o755), os.WriteFile(filepath.Join(d, fmt.Sprint(i)), nil, 0o644)); err != nil {
					t.Fatal(err)
				}
				dirs = append(dirs, d)
			}
			target := t.TempDir()
			m := Mount{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=" + strings.Join(dirs, ":"), "ro"}}
			if err := m.overlayOld(target); err != nil {
				t.Fatal(err)
			}
			files, err := os.ReadDir(target)
			if err = errors.Join(err, Unmount(target)); err != nil {
				t.Fatal(err)
			}
			if len(files) != n {
				t.Errorf("files: got %d, want %d", len(files), n)
			}
		})
	}
}

func TestHasLayers(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-50-cloud-amd64": false, "6.7.12": false, "6.8": true, "6.8.0-rc1": true, "6.12.3+": true, "7.0.1": true, "5.15.0": false,
		"4.18.0-553.el8": false, "": true, "new": true,
	} {
		if got := hasLayers(release); got != want {
			t.Errorf("%s: %t", release, got)
		}
	}
}

func TestMountSaysWhy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts filesystems")
	}
	m := Mount{Type: "overlay", Source: "overlay", Options: []string{"lowerdir=/nowhere/1:/nowhere/2"}}
	for _, err := range []error{m.Mount(t.TempDir()), m.named(m.overlayOld(t.TempDir()))} {
		if !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "/nowhere/1") {
			t.Errorf("got %v, want the layer that is missing", err)
		}
	}
	if err := (Mount{Type: "tmpfs"}).Mount(t.TempDir()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("tmpfs: got %v", err)
	}
}

// TestTornLayers: what a boot left unsynced is not trusted by the next one.
func TestTornLayers(t *testing.T) {
	s := &labels{boot: "now", dirs: directories{t.TempDir()}}
	if err := os.MkdirAll(s.dirs.files(1), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		r    record
		want bool
	}{
		{record{ID: 1, Boot: "now"}, true},
		{record{ID: 1, Boot: "before", Durable: true}, true},
		{record{ID: 1, Boot: "before"}, false},
		{record{ID: 2, Boot: "now", Durable: true}, false},
	} {
		if got := s.whole(c.r); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.r, got, c.want)
		}
	}
}
