package openat

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRenames walks through ".." while somebody renames files, of which the kernel can make nothing but EAGAIN.
func TestRenames(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, d := range []string{"sub", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(a, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	done := make(chan struct{})
	var renames sync.WaitGroup
	renames.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := errors.Join(os.Rename(a, b), os.Rename(b, a)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT}
	path := strings.Repeat("sub/../", 200) + "elsewhere"
	disturbed := 0
	for range 2000 {
		if fd, err := unix.Openat2(root, path, how); err == nil {
			unix.Close(fd)
		} else {
			disturbed++
		}
		fd, err := Open(root, path, how)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
	close(done)
	renames.Wait()
	t.Logf("%d of 2000 walks would have failed", disturbed)
}

// TestOther gives back what is no disturbance.
func TestOther(t *testing.T) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC}
	if fd, err := Open(unix.AT_FDCWD, filepath.Join(t.TempDir(), "none"), how); !errors.Is(err, unix.ENOENT) || fd != -1 {
		t.Errorf("%d, %v", fd, err)
	}
}
