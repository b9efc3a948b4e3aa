package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/mount/mounttest"
)

func TestReadFile(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	vol := filepath.Join(dir, "vol")
	must(t, os.MkdirAll(filepath.Join(vol, "sub", "mounted"), 0o755))
	mounttest.Write(t, filepath.Join(dir, "outside"), "secret")
	mounttest.Write(t, filepath.Join(vol, "sub", "file"), "inside")
	mounttest.Write(t, filepath.Join(vol, "large"), strings.Repeat("x", 17))
	must(t, os.Symlink("sub/file", filepath.Join(vol, "link")))
	must(t, os.Symlink("../outside", filepath.Join(vol, "up")))
	must(t, os.Symlink(filepath.Join(vol, "sub/file"), filepath.Join(vol, "absolute")))
	must(t, os.Symlink("loop", filepath.Join(vol, "loop")))
	must(t, unix.Mkfifo(filepath.Join(vol, "pipe"), 0o600))
	// Who opens this one for reading takes the machine's kernel messages.
	must(t, unix.Mknod(filepath.Join(vol, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 11))))
	must(t, unix.Mount("tmpfs", filepath.Join(vol, "sub", "mounted"), "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(vol, "sub", "mounted"), unix.MNT_DETACH)) })
	mounttest.Write(t, filepath.Join(vol, "sub", "mounted", "file"), "elsewhere")

	for _, path := range []string{"sub/file", "link", "sub/../link"} {
		if got, err := ReadFile(vol, path, 16); err != nil || string(got) != "inside" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for path, want := range map[string]string{
		"up": "leads out", "absolute": "leads out", "../outside": "leads out", "/etc/hostname": "leads out", "sub/mounted/file": "leads out",
		"sub/file/x": "no directory", "large": "larger than 16 bytes", "loop": "too many levels",
		"sub": "no regular file", "pipe": "no regular file", "device": "no regular file",
	} {
		if got, err := ReadFile(vol, path, 16); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", path, got, err, want)
		}
	}
	for _, path := range []string{"none", "none/none", ""} {
		if _, err := ReadFile(vol, path, 16); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", path, err)
		}
	}
}
