package stats

import (
	"strings"
	"testing"

	"github.com/berth-node/berth/internal/filetree/filetreetest"
)

// What lies deeper than a path may be long counts against limits, too.
func TestUsedBelowLongPaths(t *testing.T) {
	dir := t.TempDir()
	files := filetreetest.Nest(t, dir, strings.Repeat("n", 200), 500, 1<<20)
	defer filetreetest.FewFiles(t, 40)()
	if used, ok := count(t.Context(), dir); !ok || used.Used < uint64(files)<<20 {
		t.Errorf("used: got %d, %v, want %d at least", used.Used, ok, int64(files)<<20)
	}
}
