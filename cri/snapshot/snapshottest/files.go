package snapshottest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got error %v, want that it is absent", path, err)
	}
}

// remove deletes path from a layer as an archive's whiteout would.
func remove(t *testing.T, path string, w snapshot.Whiteouts) {
	t.Helper()
	if w == snapshot.WhiteoutsApply {
		must(t, os.RemoveAll(path))
		return
	}
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, unix.Mknod(path, unix.S_IFCHR, 0))
}

// opaque empties the directory path of what the layers below have in it.
func opaque(t *testing.T, path string, w snapshot.Whiteouts) {
	t.Helper()
	if w == snapshot.WhiteoutsApply {
		must(t, os.RemoveAll(path))
	}
	must(t, os.MkdirAll(path, 0o755))
	if w == snapshot.WhiteoutsOverlay {
		must(t, unix.Lsetxattr(path, "trusted.overlay.opaque", []byte("y"), 0))
	}
}
