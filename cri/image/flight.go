package image

import (
	"context"
	"errors"
	"sync"
)

var errAbandoned = errors.New("nobody waits for it any more")

// flights makes one of all operations with the same key at the same time. An operation goes on while anybody waits for
// it. One that was given up but comes to its end nevertheless is handed to who asks next.
type flights[T any] struct {
	mu   sync.Mutex
	wait sync.WaitGroup
	of   map[string]*flight[T]
}

type flight[T any] struct {
	cancel  context.CancelCauseFunc
	gone    bool // given up, ending
	waiters map[*func(Progress)]struct{}
	mu      sync.Mutex // of waiters, for those who report

	done chan struct{}
	val  T
	err  error
}

// do runs fn, or waits for the one that runs. fn reports through tell, and so to all who wait.
func (g *flights[T]) do(
	ctx context.Context, key string, progress func(Progress),
	fn func(ctx context.Context, tell func(Progress)) (T, error),
) (T, error) {
	for {
		g.mu.Lock()
		f := g.of[key]
		if f != nil && f.gone {
			g.mu.Unlock()
			select {
			case <-f.done:
			case <-ctx.Done():
				return *new(T), context.Cause(ctx)
			}
			if f.err == nil {
				return f.val, nil
			}
			continue
		}
		if f == nil {
			f = g.start(ctx, key, fn)
		}
		f.join(&progress)
		g.mu.Unlock()
		select {
		case <-f.done:
			return f.val, f.err
		case <-ctx.Done():
			g.leave(f, &progress)
			return *new(T), context.Cause(ctx)
		}
	}
}

// start begins an operation; the caller holds mu.
func (g *flights[T]) start(
	ctx context.Context, key string, fn func(context.Context, func(Progress)) (T, error),
) *flight[T] {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight[T]{cancel: cancel, done: make(chan struct{}), waiters: map[*func(Progress)]struct{}{}}
	if g.of == nil {
		g.of = map[string]*flight[T]{}
	}
	g.of[key] = f
	g.wait.Go(func() {
		f.val, f.err = fn(ctx, f.tell)
		cancel(nil)
		g.mu.Lock()
		delete(g.of, key)
		g.mu.Unlock()
		close(f.done)
	})
	return f
}

func (f *flight[T]) join(progress *func(Progress)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiters[progress] = struct{}{}
}

func (g *flights[T]) leave(f *flight[T], progress *func(Progress)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.waiters, progress)
	if len(f.waiters) == 0 {
		f.gone = true
		f.cancel(errAbandoned)
	}
}

// tell reports to all who wait. None of them is called twice at a time, nor after its do has returned.
func (f *flight[T]) tell(p Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.waiters {
		if *w != nil {
			(*w)(p)
		}
	}
}

// close gives up all operations and waits for their end.
func (g *flights[T]) close() {
	g.mu.Lock()
	for _, f := range g.of {
		f.gone = true
		f.cancel(errAbandoned)
	}
	g.mu.Unlock()
	g.wait.Wait()
}
