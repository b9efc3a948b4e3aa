package pod

import (
	"context"
	"slices"
	"sync"
)

// gate lets a number of tasks through at a time. Those that bring a pod to its end of the way go before those that
// begin with another one: with two CPUs a hundred pods begun at once would all be late.
type gate struct {
	mu    sync.Mutex
	free  int
	queue [2][]chan struct{} // those who go on, those who begin
}

func newGate(n int) *gate { return &gate{free: n} }

// enter waits for its turn. It fails only with ctx.
func (g *gate) enter(ctx context.Context, begins bool) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	i := 0
	if begins {
		i = 1
	}
	turn := make(chan struct{})
	g.queue[i] = append(g.queue[i], turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	at := slices.Index(g.queue[i], turn)
	if at >= 0 {
		g.queue[i] = slices.Delete(g.queue[i], at, at+1)
	}
	g.mu.Unlock()
	if at < 0 {
		g.leave() // its turn came just now
	}
	return ctx.Err()
}

// outside lets others through while fn runs, for those who have entered and wait for what is not this machine's work.
func (g *gate) outside(fn func() error) error {
	g.leave()
	err := fn()
	_ = g.enter(context.Background(), false) // it cannot fail
	return err
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, q := range g.queue {
		if len(q) > 0 {
			close(q[0])
			g.queue[i] = q[1:]
			return
		}
	}
	g.free++
}
