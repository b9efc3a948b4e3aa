package backend

import (
	"errors"
	"maps"
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

// TestTakenAsksOnce: each call of LVM looks through all devices of the node.
func TestTakenAsksOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "lvs"), []byte("#!/bin/sh\necho . >>"+dir+`/asked
echo '  v-1 1048576 50.00
  v-2 1048576 0.00
  other 4096 100.00
  torn 4096
  odd x 1.00
  v-4 1048576 101.00'
`), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	b, err := NewLVM("vg", "berth")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.Taken(t.Context(), "v-1", "v-2", "v-3", "v-4", "torn", "odd"), map[string]int64{"v-1": 1 << 19, "v-2": 0}; !maps.Equal(got, want) {
		t.Errorf("they take %v, want %v", got, want)
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); string(asked) != ".\n" {
		t.Errorf("LVM was asked %q, %v", asked, err)
	}
}
