package backend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/internal/command"
)

// Where the program is missing that LVM has look at a thin pool, the error says so, and not only that the pool is to be
// repaired, as LVM does.
func TestThinCheckMissing(t *testing.T) {
	dir := t.TempDir()
	program := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program("lvs", "")
	program("lvcreate", `echo "  /usr/sbin/thin_check: execvp failed: No such file or directory
  Check of pool vg/berth failed (status:2). Manual repair required!
  Failed to activate thin v-1." >&2; exit 5`)
	t.Setenv("PATH", dir)
	b, err := NewLVM("vg", "berth")
	if err != nil {
		t.Fatal(err)
	}
	err = b.Make(t.Context(), "v-1", 1<<20)
	if !errors.Is(err, command.ErrMissing) || !strings.Contains(err.Error(), "thin_check is not on the node (Debian package thin-provisioning-tools)") {
		t.Errorf("it says %v", err)
	}
	program("thin_check", "")
	if err := b.Make(t.Context(), "v-1", 1<<20); err == nil || errors.Is(err, command.ErrMissing) || !strings.Contains(err.Error(), "Manual repair") {
		t.Errorf("it says %v", err)
	}
	if _, err := NewLVM("../vg", "berth"); err == nil {
		t.Error("a path was taken for the name of a volume group")
	}
}
