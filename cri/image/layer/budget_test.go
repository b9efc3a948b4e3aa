package layer

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBudgetOfEmptyDisk tells apart what has no room now from what never has: for the first others are removed.
func TestBudgetOfEmptyDisk(t *testing.T) {
	var st unix.Statfs_t
	dir := t.TempDir()
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bytes       int64
		fits, never bool
	}{
		"nothing":             {0, true, false},
		"more than may be":    {b(st.Bavail, st.Bsize)/2 + b(st.Blocks-st.Bavail, st.Bsize)/4, false, false},
		"more than the disk":  {b(st.Blocks, st.Bsize) + 1, false, true},
		"eight exabytes":      {1<<63 - 1, false, true},
		"a negative size":     {-1, false, false},
		"half and one of all": {b(st.Blocks, st.Bsize)/2 + 1<<20, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			budget, err := BudgetOf(dir, 0.5)
			if err != nil {
				t.Fatal(err)
			}
			err = budget.take(c.bytes, 0)
			if (err == nil) != c.fits || errors.Is(err, ErrNeverFits) != c.never {
				t.Errorf("%d bytes: %v", c.bytes, err)
			}
			if err != nil && errors.Is(err, unix.ENOSPC) == c.never {
				t.Errorf("others are removed for it: %t", !c.never)
			}
		})
	}
}

func b(blocks uint64, size int64) int64 { return int64(blocks) * size }
