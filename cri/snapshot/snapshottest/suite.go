// Package snapshottest is what every snapshotter must do, as tests.
package snapshottest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

// Run tests snapshotters that open makes, each on an empty directory. It needs root.
func Run(t *testing.T, open func(t *testing.T) snapshot.Snapshotter) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts filesystems")
	}
	for name, f := range map[string]func(*testing.T, snapshot.Snapshotter){
		"layers stack":              layersStack,
		"writes stay apart":         writesStayApart,
		"views are read-only":       viewsAreReadOnly,
		"prepare again is the same": prepareAgain,
		"in use":                    inUse,
		"remove twice":              removeTwice,
		"missing parent":            missingParent,
		"two fill one layer":        twoFillOneLayer,
		"abort":                     abort,
		"usage":                     usage,
		"diff":                      diff,
		"attributes":                attributes,
		"many layers":               manyLayers,
		"concurrent":                concurrent,
		"clean keeps all known":     cleanKeeps,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want %v", err, target)
	}
}

// Commit makes a layer that fill writes; it is exported for the tests of snapshotters and their users.
func Commit(t *testing.T, s snapshot.Snapshotter, key, parent string, fill func(dir string, w snapshot.Whiteouts)) {
	t.Helper()
	l, err := s.Begin(t.Context(), key, parent)
	must(t, err)
	if fill != nil {
		fill(l.Dir(), l.Whiteouts())
	}
	must(t, l.Commit(t.Context()))
}

// Mount mounts what Prepare or View returned, until the end of the test.
func Mount(t *testing.T, mounts []snapshot.Mount, err error) (dir string) {
	t.Helper()
	must(t, err)
	dir = t.TempDir()
	for _, m := range mounts {
		must(t, m.Mount(dir))
	}
	t.Cleanup(func() {
		if err := snapshot.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

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

func layersStack(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) {
		write(t, dir+"/keep", "1")
		write(t, dir+"/change", "1")
		write(t, dir+"/drop", "1")
		write(t, dir+"/dir/old", "1")
	})
	Commit(t, s, "b", "a", func(dir string, w snapshot.Whiteouts) {
		write(t, dir+"/change", "2")
		remove(t, dir+"/drop", w)
		opaque(t, dir+"/dir", w)
		write(t, dir+"/dir/new", "2")
	})
	_, err := s.Begin(t.Context(), "b", "a")
	want(t, err, snapshot.ErrExists)
	if !s.Exists("a") || !s.Exists("b") || s.Exists("c") {
		t.Errorf("exists: got a %v, b %v, c %v", s.Exists("a"), s.Exists("b"), s.Exists("c"))
	}
	mounts, err := s.Prepare(t.Context(), "x", "b")
	dir := Mount(t, mounts, err)
	if got := read(t, dir+"/keep") + read(t, dir+"/change") + read(t, dir+"/dir/new"); got != "122" {
		t.Errorf("files: got %s, want 122", got)
	}
	absent(t, dir+"/drop")
	absent(t, dir+"/dir/old")
	mounts, err = s.View(t.Context(), "y", "a")
	if got := read(t, Mount(t, mounts, err)+"/change"); got != "1" {
		t.Errorf("lower layer: got %s, want 1", got)
	}
}

func writesStayApart(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "0") })
	dirs := map[string]string{}
	for _, key := range []string{"x", "y"} {
		mounts, err := s.Prepare(t.Context(), key, "a")
		dirs[key] = Mount(t, mounts, err)
		write(t, dirs[key]+"/f", key)
		write(t, dirs[key]+"/only-"+key, key)
	}
	if got := read(t, dirs["x"]+"/f") + read(t, dirs["y"]+"/f"); got != "xy" {
		t.Errorf("files: got %s, want xy", got)
	}
	absent(t, dirs["x"]+"/only-y")
	mounts, err := s.View(t.Context(), "v", "a")
	dir := Mount(t, mounts, err)
	if got := read(t, dir+"/f"); got != "0" {
		t.Errorf("layer changed: got %s, want 0", got)
	}
	absent(t, dir+"/only-x")
	mounts, err = s.Prepare(t.Context(), "scratch", "")
	write(t, Mount(t, mounts, err)+"/f", "1")
}

func viewsAreReadOnly(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "0") })
	Commit(t, s, "b", "a", nil)
	for _, parent := range []string{"", "a", "b"} {
		mounts, err := s.View(t.Context(), "view-"+parent, parent)
		dir := Mount(t, mounts, err)
		want(t, os.WriteFile(dir+"/new", nil, 0o644), unix.EROFS)
	}
}

func prepareAgain(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", nil)
	Commit(t, s, "b", "", nil)
	one, err := s.Prepare(t.Context(), "x", "a")
	dir := Mount(t, one, err)
	write(t, dir+"/f", "1")
	must(t, snapshot.Unmount(dir))
	two, err := s.Prepare(t.Context(), "x", "a")
	if got := read(t, Mount(t, two, err)+"/f"); got != "1" {
		t.Errorf("file: got %s, want 1", got)
	}
	if !slices.EqualFunc(one, two, func(a, b snapshot.Mount) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("mounts: got %v, then %v", one, two)
	}
	_, err = s.Prepare(t.Context(), "x", "b")
	want(t, err, snapshot.ErrExists)
	_, err = s.View(t.Context(), "x", "a")
	want(t, err, snapshot.ErrExists)
}

func inUse(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", nil)
	Commit(t, s, "b", "a", nil)
	_, err := s.Prepare(t.Context(), "x", "b")
	must(t, err)
	_, err = s.View(t.Context(), "v", "b")
	must(t, err)
	want(t, s.Remove(t.Context(), "a"), snapshot.ErrInUse)
	want(t, s.Remove(t.Context(), "b"), snapshot.ErrInUse)
	for i, key := range []string{"x", "v", "b", "a"} {
		must(t, s.Remove(t.Context(), key))
		if got := len(s.List()); got != 3-i {
			t.Fatalf("snapshots after removal of %s: got %d, want %d", key, got, 3-i)
		}
	}
}

func removeTwice(t *testing.T, s snapshot.Snapshotter) {
	must(t, s.Remove(t.Context(), "never"))
	Commit(t, s, "a", "", nil)
	mounts, err := s.Prepare(t.Context(), "x", "a")
	dir := Mount(t, mounts, err)
	write(t, dir+"/f", "1")
	must(t, snapshot.Unmount(dir))
	must(t, snapshot.Unmount(dir))
	must(t, s.Remove(t.Context(), "x"))
	must(t, s.Remove(t.Context(), "x"))
	mounts, err = s.Prepare(t.Context(), "x", "a")
	absent(t, Mount(t, mounts, err)+"/f")
}

func missingParent(t *testing.T, s snapshot.Snapshotter) {
	_, err := s.Prepare(t.Context(), "x", "none")
	want(t, err, snapshot.ErrNotFound)
	_, err = s.View(t.Context(), "x", "none")
	want(t, err, snapshot.ErrNotFound)
	_, err = s.Usage(t.Context(), "none")
	want(t, err, snapshot.ErrNotFound)
	if !s.Independent() {
		_, err := s.Begin(t.Context(), "b", "a")
		want(t, err, snapshot.ErrNotFound)
		return
	}
	Commit(t, s, "b", "a", nil)
	if s.Exists("b") {
		t.Error("a layer exists without its parent")
	}
	_, err = s.Prepare(t.Context(), "x", "b")
	want(t, err, snapshot.ErrNotFound)
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "1") })
	mounts, err := s.Prepare(t.Context(), "x", "b")
	if got := read(t, Mount(t, mounts, err)+"/f"); got != "1" {
		t.Errorf("file of the late parent: got %s, want 1", got)
	}
}

func twoFillOneLayer(t *testing.T, s snapshot.Snapshotter) {
	one, err := s.Begin(t.Context(), "a", "")
	must(t, err)
	two, err := s.Begin(t.Context(), "a", "")
	must(t, err)
	write(t, one.Dir()+"/f", "1")
	write(t, two.Dir()+"/f", "1")
	must(t, s.Clean(t.Context())) // leaves layers alone that are being filled
	must(t, two.Commit(t.Context()))
	must(t, one.Commit(t.Context()))
	must(t, one.Abort())
	must(t, two.Abort())
	mounts, err := s.View(t.Context(), "v", "a")
	if got := read(t, Mount(t, mounts, err)+"/f"); got != "1" {
		t.Errorf("file: got %s, want 1", got)
	}
}

func abort(t *testing.T, s snapshot.Snapshotter) {
	l, err := s.Begin(t.Context(), "a", "")
	must(t, err)
	write(t, l.Dir()+"/f", "1")
	must(t, l.Abort())
	must(t, l.Abort())
	absent(t, l.Dir())
	if s.Exists("a") || l.Commit(t.Context()) == nil {
		t.Error("an aborted layer was committed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l, err = s.Begin(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	want(t, l.Commit(ctx), context.Canceled)
	must(t, l.Commit(t.Context()))
}

func usage(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) {
		write(t, dir+"/f", string(make([]byte, 100_000)))
		must(t, os.Link(dir+"/f", dir+"/hard"))
	})
	for range 2 {
		u, err := s.Usage(t.Context(), "a")
		must(t, err)
		if u.Bytes < 100_000 || u.Bytes > 150_000 || u.Inodes != 2 {
			t.Errorf("layer: got %+v, want 100000 bytes and some, 2 inodes", u)
		}
	}
	mounts, err := s.Prepare(t.Context(), "x", "a")
	dir := Mount(t, mounts, err)
	before, err := s.Usage(t.Context(), "x")
	must(t, err)
	write(t, dir+"/g", string(make([]byte, 50_000)))
	after, err := s.Usage(t.Context(), "x")
	must(t, err)
	if d := after.Bytes - before.Bytes; d < 50_000 || d > 80_000 || after.Inodes != before.Inodes+1 {
		t.Errorf("active: got %+v, then %+v, want 50000 bytes and one inode more", before, after)
	}
}

// diff changes a container's files in all ways, and wants to be told of these alone.
func diff(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) {
		for _, f := range []string{"keep/same", "keep/gone", "tree/one/x", "again/old", "again/kept/old"} {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755))
			write(t, filepath.Join(dir, f), f)
		}
	})
	Commit(t, s, "b", "a", func(dir string, _ snapshot.Whiteouts) { write(t, filepath.Join(dir, "upper"), "of b") })
	mounts, err := s.Prepare(t.Context(), "c", "b")
	at := Mount(t, mounts, err)
	path := func(name string) string { return filepath.Join(at, name) }
	write(t, path("upper"), "changed")
	write(t, path("keep/new"), "new")
	must(t, os.Link(path("keep/new"), path("keep/link")))
	must(t, os.Symlink("/etc/passwd", path("keep/sym")))
	must(t, unix.Mkfifo(path("pipe"), 0o600))
	must(t, errors.Join(os.Remove(path("keep/gone")), os.RemoveAll(path("tree")), os.RemoveAll(path("again"))))
	must(t, os.MkdirAll(path("again/kept"), 0o755))
	write(t, path("again/kept/new"), "new")

	var out bytes.Buffer
	deleted, err := s.Diff(t.Context(), "c", &out)
	must(t, err)
	slices.Sort(deleted)
	if want := []string{"/again/kept/old", "/again/old", "/keep/gone", "/tree"}; !slices.Equal(deleted, want) {
		t.Errorf("deleted: got %q, want %q", deleted, want)
	}
	got := map[string]string{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		b, err := io.ReadAll(r)
		must(t, err)
		if h.Typeflag != tar.TypeDir {
			got[h.Name] = string(h.Typeflag) + h.Linkname + " " + string(b)
		}
	}
	if want := map[string]string{
		"upper": "0 changed", "keep/link": "0 new", "keep/new": "1keep/link ", "keep/sym": "2/etc/passwd ", "pipe": "6 ", "again/kept/new": "0 new",
	}; !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	_, err = s.Diff(t.Context(), "nobody", io.Discard)
	want(t, err, snapshot.ErrNotFound)
}

func attributes(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) {
		must(t, os.Chown(dir, 12, 34))
		must(t, os.Chmod(dir, 0o751|fs.ModeSticky))
		write(t, dir+"/su", "1")
		must(t, os.Chown(dir+"/su", 56, 78))
		must(t, unix.Chmod(dir+"/su", 0o4755))
		must(t, unix.Lsetxattr(dir+"/su", "user.k", []byte("v"), 0))
		must(t, os.Symlink("/nowhere", dir+"/sym"))
		must(t, unix.Mkfifo(dir+"/fifo", 0o600))
		must(t, os.Link(dir+"/su", dir+"/hard"))
	})
	Commit(t, s, "b", "a", func(dir string, _ snapshot.Whiteouts) {
		must(t, os.Chown(dir, 12, 34))
		must(t, os.Chmod(dir, 0o751|fs.ModeSticky))
	})
	mounts, err := s.Prepare(t.Context(), "x", "b")
	dir := Mount(t, mounts, err)
	var st, hard unix.Stat_t
	must(t, unix.Lstat(dir, &st))
	if st.Uid != 12 || st.Gid != 34 || st.Mode&0o7777 != 0o1751 {
		t.Errorf("root: got %d:%d %o, want 12:34 1751", st.Uid, st.Gid, st.Mode&0o7777)
	}
	must(t, unix.Lstat(dir+"/su", &st))
	must(t, unix.Lstat(dir+"/hard", &hard))
	if st.Uid != 56 || st.Gid != 78 || st.Mode&0o7777 != 0o4755 || hard.Ino != st.Ino || st.Nlink != 2 {
		t.Errorf("file: got %+v and %+v", st, hard)
	}
	var v [8]byte
	if n, err := unix.Lgetxattr(dir+"/su", "user.k", v[:]); err != nil || string(v[:n]) != "v" {
		t.Errorf("xattr: got %q, %v", v[:max(n, 0)], err)
	}
	if to, err := os.Readlink(dir + "/sym"); to != "/nowhere" {
		t.Errorf("link: got %q, %v", to, err)
	}
	must(t, unix.Lstat(dir+"/fifo", &st))
	if st.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("fifo: got mode %o", st.Mode)
	}
}

func manyLayers(t *testing.T, s snapshot.Snapshotter) {
	n := 200
	if !s.Independent() {
		n = 20 // each is a copy of all below
	}
	parent := ""
	for i := range n {
		key := fmt.Sprintf("sha256:%064d", i)
		Commit(t, s, key, parent, func(dir string, _ snapshot.Whiteouts) { write(t, fmt.Sprintf("%s/%d", dir, i), "1") })
		parent = key
	}
	mounts, err := s.Prepare(t.Context(), "x", parent)
	dir := Mount(t, mounts, err)
	files, err := os.ReadDir(dir)
	must(t, err)
	if len(files) != n {
		t.Errorf("files of %d layers: got %d", n, len(files))
	}
}

func concurrent(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "1") })
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			// Half of them share a key with another.
			key := fmt.Sprint(i / 2)
			mounts, err := s.Prepare(context.Background(), key, "a")
			if err != nil || len(mounts) != 1 {
				t.Errorf("prepare: got %v, %v", mounts, err)
			}
			if i%4 == 3 {
				if err := s.Remove(context.Background(), key); err != nil {
					t.Error(err)
				}
			}
			s.List()
			s.Exists("a")
		})
	}
	wg.Wait()
	for _, i := range s.List() {
		if i.Kind == snapshot.KindActive {
			must(t, s.Remove(t.Context(), i.Key))
		}
	}
	must(t, s.Remove(t.Context(), "a"))
}

func cleanKeeps(t *testing.T, s snapshot.Snapshotter) {
	Commit(t, s, "a", "", func(dir string, _ snapshot.Whiteouts) { write(t, dir+"/f", "1") })
	Commit(t, s, "b", "a", nil)
	mounts, err := s.Prepare(t.Context(), "x", "b")
	dir := Mount(t, mounts, err)
	write(t, dir+"/g", "1")
	must(t, s.Sync(t.Context()))
	must(t, s.Clean(t.Context()))
	must(t, s.Clean(t.Context()))
	if got := read(t, dir+"/f") + read(t, dir+"/g"); got != "11" {
		t.Errorf("files: got %s, want 11", got)
	}
}
