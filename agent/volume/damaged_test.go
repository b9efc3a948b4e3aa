package volume

import (
	"os"
	"path/filepath"
	"testing"
)

// A pod whose records are damaged goes like any other.
func TestTeardownWithDamagedRecords(t *testing.T) {
	needRoot(t)
	for _, text := range []string{"", "{", "\xff\xfe", `{"data":`, `[]`} {
		m := manager(t)
		setup(t, m, podWith(emptyDir("a", "", "")))
		for _, f := range []string{"iscsi.json", "claims.json"} {
			must(t, os.WriteFile(filepath.Join(string(m.root), "pods", testUID, f), []byte(text), 0o600))
		}
		teardown(t, m)
	}
}
