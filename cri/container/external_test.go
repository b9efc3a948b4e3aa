package container

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/snapshot"
)

// TestRemoveState removes what a runtime keeps of a container whose command it was starting when it was killed: the
// mount of its own program goes, and the program stays.
func TestRemoveState(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	program, state := filepath.Join(root, "runc"), filepath.Join(root, "state")
	mounted := filepath.Join(state, "runc.8wgGM7")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{program, mounted, filepath.Join(state, "state.json")} {
		if err := os.WriteFile(file, []byte("x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(program, mounted, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	for range 2 {
		if err := removeState(snapshot.Unmount, state); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the state is there: %v", err)
	}
	if text, err := os.ReadFile(program); err != nil || string(text) != "x" {
		t.Errorf("the program is %q: %v", text, err)
	}
}
