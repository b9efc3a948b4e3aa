package layer

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrTooBig says that an archive wants more of the disk than it may have, which is a share of what is free.
var ErrTooBig = fmt.Errorf("more than this image may take of the disk: %w", unix.ENOSPC)

// ErrNeverFits says that an archive wants more than it might have if the disk were empty: room that others give up is
// no help, so it is no error of the kind ENOSPC.
var ErrNeverFits = errors.New("more than this image may take of the whole disk")

// Budget is what all layers of one image may take together. It is safe for concurrent use.
type Budget struct {
	bytes, inodes       atomic.Int64
	maxBytes, maxInodes int64
	emptyBytes          int64 // what it may be when nothing else is on the disk
}

// NewBudget allows so many bytes and inodes.
func NewBudget(bytes, inodes int64) *Budget {
	return &Budget{maxBytes: bytes, maxInodes: inodes, emptyBytes: math.MaxInt64}
}

// BudgetOf allows a share of what is free on the filesystem of dir, because a few kilobytes of archive can ask for
// terabytes.
func BudgetOf(dir string, share float64) (*Budget, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("look for free space of %s: %w", dir, err)
	}
	inodes := int64(share * float64(st.Ffree))
	if st.Files == 0 { // btrfs and others make inodes as they need them
		inodes = 1 << 40
	}
	b := NewBudget(int64(share*float64(st.Bavail)*float64(st.Bsize)), inodes)
	b.emptyBytes = max(int64(share*float64(st.Blocks)*float64(st.Bsize)), b.maxBytes)
	return b, nil
}

// Bytes is how much it allows in all.
func (b *Budget) Bytes() int64 { return b.maxBytes }

// Keep pays for bytes that are kept of the archive itself, as it comes: they are on the disk beside what is unpacked of
// it, and need not be anything that can be unpacked.
func (b *Budget) Keep(bytes int64) error { return b.take(bytes, 0) }

// Drop gives back what was paid for bytes that are kept no more.
func (b *Budget) Drop(bytes int64) { b.bytes.Add(-bytes) }

func (b *Budget) take(bytes, inodes int64) error {
	if bytes > b.emptyBytes {
		return fmt.Errorf("%w: %d bytes are allowed", ErrNeverFits, b.emptyBytes)
	}
	if bytes < 0 || bytes > b.maxBytes || b.bytes.Add(bytes) > b.maxBytes {
		return fmt.Errorf("%w: %d bytes are allowed", ErrTooBig, b.maxBytes)
	}
	if b.inodes.Add(inodes) > b.maxInodes {
		return fmt.Errorf("%w: %d files are allowed", ErrTooBig, b.maxInodes)
	}
	return nil
}
