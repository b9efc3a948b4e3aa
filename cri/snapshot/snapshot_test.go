package snapshot_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/snapshot/snapshottest"
	"github.com/berth-node/berth/cri/store"
)

type opener func(root string, db *store.DB, log *slog.Logger) (snapshot.Snapshotter, error)

var implementations = map[string]opener{"overlay": snapshot.NewOverlay, "native": snapshot.NewNative}

// node is a directory with a store and snapshots, which can be opened again as after a crash.
type node struct {
	t    testing.TB
	dir  string
	open opener
	db   *store.DB
	snapshot.Snapshotter
}

func newNode(t testing.TB, open opener) *node {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts filesystems")
	}
	n := &node{t: t, dir: t.TempDir(), open: open}
	n.start()
	t.Cleanup(func() {
		// Empties the trash, so that nothing deletes in the background while the directory goes.
		if err := errors.Join(n.Clean(t.Context()), n.Swept(t.Context()), n.db.Close()); err != nil && !errors.Is(err, t.Context().Err()) {
			t.Error(err)
		}
	})
	return n
}

func (n *node) start() {
	n.t.Helper()
	var err error
	if n.db, err = store.Open(store.Config{Path: filepath.Join(n.dir, "x.db")}); err != nil {
		n.t.Fatal(err)
	}
	if n.Snapshotter, err = n.open(filepath.Join(n.dir, "s"), n.db, nil); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) restart() {
	n.t.Helper()
	if err := n.db.Close(); err != nil {
		n.t.Fatal(err)
	}
	n.start()
}

func TestSnapshotters(t *testing.T) {
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			snapshottest.Run(t, func(t *testing.T) snapshot.Snapshotter { return newNode(t, open).Snapshotter })
		})
	}
}

// dirs lists what is on the disk, without the fixed directories.
func (n *node) dirs() []string {
	n.t.Helper()
	var all []string
	for _, pattern := range []string{"[0-9]*", "new/*", "trash/*"} {
		m, err := filepath.Glob(filepath.Join(n.dir, "s", n.Name(), pattern))
		if err != nil {
			n.t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

func TestCrash(t *testing.T) {
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) { testCrash(t, newNode(t, open)) })
	}
}

func testCrash(t *testing.T, n *node) {
	fill := func(dir string, _ snapshot.Whiteouts) {
		if err := os.WriteFile(dir+"/f", []byte("1"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	snapshottest.Commit(t, n, "a", "", fill)
	if _, err := n.Begin(t.Context(), "b", "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(t.Context(), "x", "a"); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(n.dir, "s", n.Name())
	// A crash between the rename of a layer and its record, with a mount of it; and after the first half of a removal.
	orphan := filepath.Join(root, "77")
	target := t.TempDir()
	if err := errors.Join(os.MkdirAll(orphan+"/fs", 0o755), os.Mkdir(orphan+"/work", 0o755), os.MkdirAll(root+"/trash/78/fs", 0o755)); err != nil {
		t.Fatal(err)
	}
	m := snapshot.Mount{Type: "bind", Source: orphan + "/fs"}
	if n.Name() == "overlay" {
		m = snapshot.Mount{Type: "overlay", Source: "overlay", Options: []string{
			"lowerdir=" + t.TempDir(), "upperdir=" + orphan + "/fs", "workdir=" + orphan + "/work",
		}}
	}
	if err := m.Mount(target); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target+"/mark", nil, 0o644); err != nil {
		t.Fatal(err)
	}

	n.restart()
	if err := errors.Join(n.Clean(t.Context()), n.Swept(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(target + "/mark"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("mount of an orphan: got error %v, want that it is gone", err)
	}
	if got := n.dirs(); len(got) != 2 {
		t.Errorf("directories: got %v, want those of a and x", got)
	}
	if !n.Exists("a") || n.Exists("b") {
		t.Errorf("exists: got a %v, b %v, want true, false", n.Exists("a"), n.Exists("b"))
	}
	mounts, err := n.Prepare(t.Context(), "x", "a")
	if dir := snapshottest.Mount(t, mounts, err); !exists(dir + "/f") {
		t.Error("file of the layer is missing")
	}
	// A layer whose directory vanished, as after the first half of a removal, is unpacked again.
	if err := os.RemoveAll(filepath.Dir(n.List()[0].Dir)); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if n.Exists("a") {
		t.Error("a layer without files exists")
	}
	for _, i := range n.List() {
		if err := n.Remove(t.Context(), i.Key); err != nil {
			t.Error(err)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestHalfPrepared cuts Prepare off after its record and after each directory.
func TestHalfPrepared(t *testing.T) {
	for name, open := range implementations {
		for _, gone := range []string{"", "fs", "work"} {
			t.Run(name+" without "+gone, func(t *testing.T) {
				n := newNode(t, open)
				snapshottest.Commit(t, n, "a", "", func(dir string, _ snapshot.Whiteouts) {
					if err := os.WriteFile(dir+"/f", nil, 0o644); err != nil {
						t.Fatal(err)
					}
				})
				if _, err := n.Prepare(t.Context(), "x", "a"); err != nil {
					t.Fatal(err)
				}
				dir := filepath.Dir(n.List()[1].Dir)
				for _, d := range []string{gone, "work"} { // what is made later is missing too
					if err := os.RemoveAll(filepath.Join(dir, d)); err != nil {
						t.Fatal(err)
					}
				}
				mounts, err := n.Prepare(t.Context(), "x", "a")
				if dir := snapshottest.Mount(t, mounts, err); !exists(dir + "/f") {
					t.Error("file of the layer is missing")
				}
			})
		}
	}
}

func TestFallback(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts filesystems")
	}
	// Overlay options cannot carry a colon, and a colon is a simple stand-in for a filesystem that cannot carry
	// overlays.
	dir := filepath.Join(t.TempDir(), "a:b")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(store.Config{Path: dir + "/x.db"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var log strings.Builder
	s, err := snapshot.New(dir, db, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name() != "native" || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("got %s, log %q; want native with one warning", s.Name(), log.String())
	}
}

// TestOverlayOnOverlay: an upper directory on overlay is what OverlayFS refuses on a real machine.
func TestOverlayOnOverlay(t *testing.T) {
	n := newNode(t, snapshot.NewOverlay)
	snapshottest.Commit(t, n, "a", "", nil)
	mounts, err := n.Prepare(t.Context(), "x", "a")
	dir := snapshottest.Mount(t, mounts, err)
	if _, err := snapshot.NewOverlay(dir, n.db, nil); !errors.Is(err, snapshot.ErrUnsupported) {
		t.Errorf("overlay on overlay: got %v, want %v", err, snapshot.ErrUnsupported)
	}
}

func TestUnmountDoesNotFollowLinks(t *testing.T) {
	n := newNode(t, snapshot.NewNative)
	snapshottest.Commit(t, n, "a", "", func(dir string, _ snapshot.Whiteouts) { os.WriteFile(dir+"/f", nil, 0o644) })
	mounts, err := n.View(t.Context(), "x", "a")
	dir := snapshottest.Mount(t, mounts, err)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Unmount(link); err != nil {
		t.Error(err)
	}
	if !exists(dir + "/f") {
		t.Error("unmounted through a symbolic link")
	}
	f, err := os.Open(dir) // busy
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := snapshot.Unmount(dir); err != nil {
		t.Error(err)
	}
	if exists(dir + "/f") {
		t.Error("still mounted")
	}
	if err := snapshot.Unmount(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

func BenchmarkContainer(b *testing.B) {
	n := newNode(b, snapshot.NewOverlay)
	parent := ""
	for i := range 5 {
		key := fmt.Sprint("layer", i)
		l, err := n.Begin(b.Context(), key, parent)
		if err == nil {
			err = l.Commit(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		parent = key
	}
	target := b.TempDir()
	for b.Loop() {
		mounts, err := n.Prepare(b.Context(), "x", parent)
		if err == nil {
			err = mounts[0].Mount(target)
		}
		if err = errors.Join(err, snapshot.Unmount(target), n.Remove(b.Context(), "x")); err != nil {
			b.Fatal(err)
		}
	}
}
