// Package background runs what goes on beside the calls of clients.
package background

import (
	"context"
	"sync"
)

// Tasks is what goes on in the background, from New until the server is closed.
type Tasks struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	wait   sync.WaitGroup
}

// New returns no tasks yet.
func New() *Tasks {
	l := &Tasks{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Start runs f in the background. It returns false, and does not, when the end has come already.
func (l *Tasks) Start(f func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.wait.Go(func() { f(l.ctx) })
	return true
}

// End cancels what runs and waits for it.
func (l *Tasks) End() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wait.Wait()
}

// Cancel cancels what runs, and does not wait.
func (l *Tasks) Cancel() { l.cancel() }
