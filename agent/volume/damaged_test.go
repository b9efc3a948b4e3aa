package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A pod whose records are damaged goes like any other, and no other pod's disk is taken for unshared because of it.
func TestTeardownWithDamagedRecords(t *testing.T) {
	needRoot(t)
	for _, text := range []string{"", "{", "\xff\xfe", `{"data":`, `[]`} {
		m := manager(t)
		setup(t, m, podWith(emptyDir("a", "", "")))
		dir := filepath.Join(m.cfg.Root, "pods", testUID)
		for _, f := range []string{iscsiFile, claimsFile} {
			must(t, os.WriteFile(filepath.Join(dir, f), []byte(text), 0o600))
		}
		if _, err := readDisks(dir); !errors.Is(err, errDamaged) {
			t.Errorf("%q: %v", text, err)
		}
		shared, err := m.others(filepath.Join(m.cfg.Root, "pods", "other"), "v", func(iscsiDisk) bool { return false })
		if err != nil || !shared {
			t.Errorf("%q: shared is %t, %v", text, shared, err)
		}
		teardown(t, m)
	}
}
