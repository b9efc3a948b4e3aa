package cri

import (
	"context"
	"sync"
)

// life is what goes on in the background, from New until the server is closed.
type life struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	wait   sync.WaitGroup
}

func newLife() *life {
	l := &life{}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// start runs f in the background. It returns false, and does not, when the end has come already.
func (l *life) start(f func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.wait.Go(func() { f(l.ctx) })
	return true
}

// end cancels what runs and waits for it.
func (l *life) end() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wait.Wait()
}
