package mount

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/keylock"
)

// deviceLocks are locks by device, whatever it is called. Who waits for one does so no longer than its context.
type deviceLocks struct {
	byNumber keylock.Locks[uint64]
}

func (l *deviceLocks) lock(ctx context.Context, device string) (unlock func(), err error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", device, err)
	}
	unlock, err = l.byNumber.Lock(ctx, st.Rdev)
	if err != nil {
		return nil, fmt.Errorf("wait until %s is free: %w", device, ctx.Err())
	}
	return unlock, nil
}
