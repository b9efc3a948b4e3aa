package filetree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var plenty = Room{1 << 40, 1 << 40}

// TestCopy has one of each kind of file, and looks at all of the copy that somebody could see.
func TestCopy(t *testing.T) {
	src, dst := filepath.Join(t.TempDir(), "src"), filepath.Join(t.TempDir(), "dst")
	must(t, os.MkdirAll(filepath.Join(src, "d/e"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "d/f"), []byte("text"), 0o640))
	must(t, os.Link(filepath.Join(src, "d/f"), filepath.Join(src, "d/e/g")))
	must(t, os.Symlink("/etc/passwd", filepath.Join(src, "link")))
	must(t, unix.Mkfifo(filepath.Join(src, "pipe"), 0o600))
	must(t, os.WriteFile(filepath.Join(src, "empty"), nil, 0o400))
	sparse, err := os.Create(filepath.Join(src, "sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("end"), 1<<30)
	must(t, errors.Join(err, sparse.Close()))
	xattr := unix.Setxattr(filepath.Join(src, "d/f"), "user.test", []byte("value"), 0) == nil
	must(t, os.Chmod(filepath.Join(src, "d/e"), 0o1777))
	if os.Geteuid() == 0 {
		must(t, os.Lchown(filepath.Join(src, "link"), 12, 34))
	}
	old := time.Unix(1_000_000_000, 5000)
	for _, name := range []string{"d/f", "d/e", "d", ""} {
		must(t, os.Chtimes(filepath.Join(src, name), old, old))
	}
	must(t, Copy(t.Context(), dst, src, plenty))
	must(t, filepath.WalkDir(src, func(path string, _ fs.DirEntry, err error) error {
		must(t, err)
		name := strings.TrimPrefix(path, src)
		var a, b unix.Stat_t
		must(t, errors.Join(unix.Lstat(path, &a), unix.Lstat(dst+name, &b)))
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Mtim != b.Mtim || a.Nlink != b.Nlink || !isDir(&a) && a.Size != b.Size {
			t.Errorf("%q is %+v, and its copy %+v", name, a, b)
		}
		return nil
	}))
	var st unix.Stat_t
	must(t, unix.Lstat(dst+"/sparse", &st))
	if st.Blocks*512 > 1<<20 {
		t.Errorf("the copy of a file with a hole takes %d bytes", st.Blocks*512)
	}
	if b, err := os.ReadFile(dst + "/d/e/g"); err != nil || string(b) != "text" {
		t.Errorf("the copy has %q, %v", b, err)
	}
	value := make([]byte, 20)
	if n, err := unix.Getxattr(dst+"/d/f", "user.test", value); xattr && (err != nil || string(value[:n]) != "value") {
		t.Errorf("attribute is %q, %v", value[:max(n, 0)], err)
	}
}

// TestCopyEnds has copies that nobody wants any more, and that take more than there is to be had.
func TestCopyEnds(t *testing.T) {
	src := t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "f"), make([]byte, 1<<20), 0o600))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		room Room
		is   error
	}{
		"given up":       {gone, plenty, context.Canceled},
		"many bytes":     {t.Context(), Room{1 << 19, 10}, unix.ENOSPC},
		"many files":     {t.Context(), Room{1 << 30, 0}, unix.ENOSPC},
		"there is room":  {t.Context(), Room{1 << 21, 1}, nil},
		"no one to copy": {t.Context(), plenty, os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			from := src
			if errors.Is(c.is, os.ErrNotExist) {
				from += "/none"
			}
			if err := Copy(c.ctx, t.TempDir(), from, c.room); !errors.Is(err, c.is) || c.is == nil && err != nil {
				t.Errorf("error is %v", err)
			}
		})
	}
	from, err := os.Open(filepath.Join(src, "f"))
	must(t, err)
	defer from.Close()
	to, err := os.Create(filepath.Join(t.TempDir(), "to"))
	must(t, err)
	defer to.Close()
	if err := copyRange(gone, to, from, 0, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("in the middle of a file: %v", err)
	}
}
