package mount

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// deviceLocks are locks by device, whatever it is called. Who waits for one does so no longer than its context.
type deviceLocks struct {
	mu   sync.Mutex
	busy map[uint64]chan struct{} // by the number of the device: closed when it is free
}

func (l *deviceLocks) lock(ctx context.Context, device string) (unlock func(), err error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", device, err)
	}
	for {
		free, wait := l.take(st.Rdev)
		if wait == nil {
			return free, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until %s is free: %w", device, ctx.Err())
		}
	}
}

// take is how to free the device, or what tells when it is free.
func (l *deviceLocks) take(number uint64) (free func(), wait <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if wait := l.busy[number]; wait != nil {
		return nil, wait
	}
	if l.busy == nil {
		l.busy = map[uint64]chan struct{}{}
	}
	done := make(chan struct{})
	l.busy[number] = done
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.busy, number)
		close(done)
	}, nil
}
