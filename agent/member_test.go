package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/config"
)

// TestKeptOnAReadOnlyDisk: that pods are to be kept for a start without the API server is no reason not to start. What
// was kept before is read.
func TestKeptOnAReadOnlyDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts")
	}
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", root, "", unix.MS_REMOUNT|flags, "size=1m"); err != nil {
			t.Fatal(err)
		}
	}
	c := &Config{}
	c.RootDir, c.Offline, c.NodeName, c.Log = root, config.OfflineKeep, "node", slog.New(slog.DiscardHandler)
	remount(unix.MS_RDONLY)
	if s, err := openKept(c); s != nil || err != nil {
		t.Errorf("without a key: %v, %v", s, err)
	}
	remount(0)
	if s, err := openKept(c); s == nil || err != nil {
		t.Errorf("%v, %v", s, err)
	}
	remount(unix.MS_RDONLY)
	if s, err := openKept(c); s == nil || err != nil {
		t.Errorf("with a key: %v, %v", s, err)
	}
	remount(0)
	if err := os.Chmod(filepath.Join(root, keptDir, "key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openKept(c); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(filepath.Join(root, keptDir, "key")); err != nil || st.Mode() != 0o600 {
		t.Errorf("the key that somebody has opened: %v, %v", st, err)
	}
}

// TestScarce: what containers can take from the node ends no part of the agent.
func TestScarce(t *testing.T) {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if !scarce(&os.PathError{Op: "watch", Path: "/x", Err: e}) {
			t.Errorf("%v", e)
		}
	}
	if scarce(nil) || scarce(unix.EACCES) {
		t.Error("what is not")
	}
}
