package snapshot_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/snapshot/snapshottest"
	"github.com/berth-node/berth/internal/filetree/filetreetest"
)

// A container can nest directories as deep as it likes, and have what nobody can delete. Neither keeps a start from
// anything.
func TestHostileTrees(t *testing.T) {
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) { testHostileTrees(t, newNode(t, open)) })
	}
}

func testHostileTrees(t *testing.T, n *node) {
	snapshottest.Commit(t, n, "a", "", func(string, snapshot.Whiteouts) {})
	if _, err := n.Prepare(t.Context(), "x", "a"); err != nil {
		t.Fatal(err)
	}
	var files string
	for _, i := range n.List() {
		if i.Key == "x" {
			files = i.Dir
		}
	}
	few := filetreetest.Nest(t, files, strings.Repeat("n", 90), 2500, 4096)
	undo := filetreetest.FewFiles(t, 60)
	defer undo()
	u, err := n.Usage(t.Context(), "x")
	if err != nil || u.Bytes < uint64(few)*4096 || u.Inodes < 2500 {
		t.Errorf("usage: got %+v, %v", u, err)
	}
	if _, err := n.Diff(t.Context(), "x", io.Discard); !errors.Is(err, unix.ENAMETOOLONG) || len(err.Error()) > 500 {
		t.Errorf("an archive of it: %v", err)
	}
	if err := n.Remove(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := n.Swept(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Something is mounted in what was removed, and cannot go.
	stuck := filepath.Join(n.dir, "s", n.Name(), "trash", "99", strings.Repeat("d/", 1000))
	if err := os.MkdirAll(stuck, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("t", stuck, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(stuck, unix.MNT_DETACH) }()
	other := filepath.Join(n.dir, "s", n.Name(), "trash", "100", "other")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if err := n.Clean(t.Context()); err != nil {
		t.Errorf("start: %v", err)
	}
	if err := n.Swept(t.Context()); !errors.Is(err, unix.EBUSY) || len(err.Error()) > 500 {
		t.Errorf("told of what stays: %v", err)
	}
	if _, err := os.Lstat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the other directory: %v", err)
	}
	if err := unix.Unmount(stuck, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.Clean(t.Context()), n.Swept(t.Context())); err != nil {
		t.Errorf("tried again: %v", err)
	}
	if got := n.dirs(); len(got) != 1 {
		t.Errorf("directories: got %v, want that of a", got)
	}
}
