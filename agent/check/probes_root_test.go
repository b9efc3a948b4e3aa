package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRootProbes(t *testing.T) {
	dir := t.TempDir()
	if a := probeRecords(t.Context(), &env{dir: dir}); a.status != OK {
		t.Errorf("got %+v", a)
	}
	for _, file := range []string{"runtime.db.damaged", "devices.json.bad"} {
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if a := probeRecords(t.Context(), &env{dir: dir}); a.status != Limited || !strings.Contains(a.found, path) {
			t.Errorf("got %+v", a)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	if err := unix.Mount("t", dir, "tmpfs", 0, "size=1m,nr_inodes=40"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	if a := probeRoom(t.Context(), &env{dir: dir}); a.status != OK {
		t.Errorf("got %+v", a)
	}
	for i := range 50 {
		_ = os.WriteFile(filepath.Join(dir, string(rune('a'+i))), nil, 0o600)
	}
	if a := probeRoom(t.Context(), &env{dir: dir}); a.status != Missing || !strings.Contains(a.found, "no space left") {
		t.Errorf("without inodes: %+v", a)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 40 {
		t.Errorf("left: %d, %v", len(left), err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if a := probeRoom(t.Context(), &env{dir: dir}); a.status != Missing || !strings.Contains(a.found, "read-only") {
		t.Errorf("read-only: %+v", a)
	}
}
