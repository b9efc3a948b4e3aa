package filetree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/filetree/filetreetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func TestAnyDepth(t *testing.T) {
	dir := t.TempDir()
	top := filepath.Join(dir, "top")
	must(t, os.Mkdir(top, 0o755))
	const depth = 6000
	files := filetreetest.Nest(t, top, "d", depth, 8192)
	more := filetreetest.Nest(t, top, strings.Repeat("long", 50), 300, 8192)
	filetreetest.FewFiles(t, kept+12)
	u, err := Count(t.Context(), top)
	must(t, err)
	if want := uint64(1 + depth + 300 + files + more); u.Inodes != want {
		t.Errorf("inodes: got %d, want %d", u.Inodes, want)
	}
	if least := uint64(files+more) * 8192; u.Bytes < least {
		t.Errorf("bytes: got %d, want %d at least", u.Bytes, least)
	}
	must(t, RemoveAll(t.Context(), top))
	absent(t, top)
}

func TestManyEntries(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	for i := range 1200 {
		must(t, os.MkdirAll(filepath.Join(top, "wide", "directory "+strconv.Itoa(i), "in"), 0o755))
		must(t, os.WriteFile(filepath.Join(top, "wide", "file "+strconv.Itoa(i)), nil, 0o600))
	}
	must(t, os.Link(filepath.Join(top, "wide/file 1"), filepath.Join(top, "link")))
	u, err := Count(t.Context(), top)
	must(t, err)
	if u.Inodes != 2+3*1200 {
		t.Errorf("inodes: got %d", u.Inodes)
	}
	gone := 0
	parent, err := unix.Open(filepath.Dir(top), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(parent)
	must(t, RemoveAt(t.Context(), parent, "top", filepath.Dir(top), Removal{Gone: func(*unix.Stat_t) { gone++ }}))
	absent(t, top)
	if gone != 2+3*1200+1 {
		t.Errorf("told of %d", gone)
	}
	must(t, RemoveAll(t.Context(), top))
	must(t, RemoveAll(t.Context(), filepath.Join(top, "below nothing")))
}

// What lies outside stays, whatever points there.
func TestLinksAndMounts(t *testing.T) {
	dir := t.TempDir()
	top, outside := filepath.Join(dir, "top"), filepath.Join(dir, "outside")
	must(t, os.MkdirAll(filepath.Join(top, "a/b"), 0o755))
	must(t, os.MkdirAll(filepath.Join(outside, "precious"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(top, "a/link")))
	u, err := Count(t.Context(), top)
	if err != nil || u.Inodes != 4 {
		t.Errorf("count: %d inodes, %v", u.Inodes, err)
	}
	if os.Geteuid() == 0 {
		on := filepath.Join(top, "a/b")
		must(t, unix.Mount(outside, on, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(on, unix.MNT_DETACH) })
		if err := RemoveAll(t.Context(), top); err == nil {
			t.Error("a mount was removed")
		}
		must(t, unix.Unmount(on, 0))
	}
	must(t, RemoveAll(t.Context(), top))
	absent(t, top)
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Error(err)
	}
}

// A directory that is moved away while the walk is far below it leads the walk nowhere else.
func TestMovedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	top, outside := filepath.Join(dir, "top"), filepath.Join(dir, "outside")
	must(t, os.MkdirAll(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(top, "beside"), 0o755))
	filetreetest.Nest(t, top, "d", 3*kept, 0)
	for depth := 1; depth < 2*kept; depth++ {
		must(t, os.RemoveAll(top))
		must(t, os.MkdirAll(filepath.Join(top, "beside"), 0o755))
		filetreetest.Nest(t, top, "d", 3*kept, 0)
		moved := false
		fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		err = Empty(t.Context(), fd, top, Removal{May: func(at int, _ *unix.Stat_t) error {
			if at == 3*kept-1 && !moved {
				moved = true
				return os.Rename(filepath.Join(top, strings.Repeat("d/", depth)), filepath.Join(outside, "moved"+strconv.Itoa(depth)))
			}
			return nil
		}})
		unix.Close(fd)
		must(t, err)
		absent(t, filepath.Join(top, "beside"))
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Error(err)
	}
}

// Two may remove one tree. What the other has removed is still there by the descriptors of the one, and ext4 knows no
// place in it to go on reading from.
func TestRemovedMeanwhile(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	for depth := range 3 * kept {
		must(t, os.MkdirAll(filepath.Join(top, "beside"), 0o755))
		filetreetest.Nest(t, top, "d", 4*kept, 0)
		fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		other := false
		err = Empty(t.Context(), fd, top, Removal{May: func(at int, _ *unix.Stat_t) error {
			if at < 4*kept-1 || other {
				return nil
			}
			other = true
			return RemoveAll(t.Context(), filepath.Join(top, strings.Repeat("d/", 1+depth)))
		}})
		unix.Close(fd)
		must(t, err)
		absent(t, filepath.Join(top, "beside"))
		absent(t, filepath.Join(top, "d"))
	}
}

// One entry that cannot be removed keeps none of the others, and its path of many kilobytes is not in the error.
func TestErrorsAreBounded(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	must(t, os.Mkdir(top, 0o755))
	filetreetest.Nest(t, top, strings.Repeat("n\x1b[31m", 20), 400, 0)
	must(t, os.MkdirAll(filepath.Join(top, "z", "other"), 0o755))
	refused := errors.New("stays")
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	err = Empty(t.Context(), fd, top, Removal{May: func(depth int, _ *unix.Stat_t) error {
		if depth == 399 {
			return refused
		}
		return nil
	}})
	if !errors.Is(err, refused) {
		t.Fatalf("got %v", err)
	}
	if len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\x1b\n") {
		t.Errorf("error of %d bytes: %s", len(err.Error()), err)
	}
	absent(t, filepath.Join(top, "z"))
	must(t, Empty(t.Context(), fd, top, Removal{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Empty(ctx, fd, top, Removal{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
