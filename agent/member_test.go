package agent

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/source/apiserver/kept"
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
	if s := openKept(c); s != nil {
		t.Errorf("without a key: %v", s)
	}
	remount(0)
	if openKept(c) == nil {
		t.Error("nothing is kept")
	}
	remount(unix.MS_RDONLY)
	if openKept(c) == nil {
		t.Error("nothing is kept, and there is a key")
	}
	remount(0)
	if err := os.Chmod(filepath.Join(root, keptDir, "key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if openKept(c) == nil {
		t.Error("nothing is kept, since somebody has opened the key")
	}
	if st, err := os.Stat(filepath.Join(root, keptDir, "key")); err != nil || st.Mode() != 0o600 {
		t.Errorf("the key that somebody has opened: %v, %v", st, err)
	}
}

// TestNothingKept: a directory that is none, and a credential that is no good, do not keep the node from its start.
func TestNothingKept(t *testing.T) {
	var said bytes.Buffer
	c := &Config{}
	c.RootDir, c.Offline, c.NodeName, c.Log = t.TempDir(), config.OfflineKeep, "node", slog.New(slog.NewTextHandler(&said, nil))
	path := filepath.Join(c.RootDir, keptDir)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := openKept(c); s != nil || !strings.Contains(said.String(), path) {
		t.Errorf("%v, %s", s, &said)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	credentials := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", credentials)
	credential := filepath.Join(credentials, kept.Credential)
	if err := os.WriteFile(credential, []byte("1234"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := openKept(c); s != nil || !strings.Contains(said.String(), credential) {
		t.Errorf("%v, %s", s, &said)
	}
}
