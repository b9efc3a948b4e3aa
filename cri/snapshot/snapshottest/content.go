package snapshottest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

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
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if u, err := s.Usage(ctx, "x"); err == nil || u.Inodes == 0 {
		t.Errorf("without the time to count it: got %+v, %v, want what could be counted", u, err)
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
