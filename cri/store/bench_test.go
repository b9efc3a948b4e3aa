package store

import (
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkPut is what a change of a record costs, of which the start of a pod has about ten.
func BenchmarkPut(b *testing.B) {
	dir := b.TempDir()
	db, err := Open(Config{Path: filepath.Join(dir, "x.db"), Beside: filepath.Join(dir, "y.db")})
	must(b, err)
	defer db.Close()
	tab, err := NewTable[row](db, "rows")
	must(b, err)
	r := row{Name: strings.Repeat("x", 2000), N: 1}
	for b.Loop() {
		must(b, tab.Put("key", r))
	}
}
