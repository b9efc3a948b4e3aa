// Package mounttest is what tests of what is mounted share: a root that has no mounts left in the end, and the files in
// it.
package mounttest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-node/berth/internal/mount"
)

// Root is a directory for the volumes of one test. At its end no mount may be left there.
func Root(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		left, err := mount.Under(root)
		if err != nil || len(left) > 0 {
			t.Errorf("mounts left: %v %v", left, err)
			_ = mount.UnmountUnder(root)
		}
	})
	return root
}

// Write writes a file, with the directories that it is in.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Read is what is in a file.
func Read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
