// Package patience calls what may never return. A file system whose server does not answer, or FUSE whose process does
// not, keeps whoever touches it in the kernel, and no context reaches there: all that can be done is not to wait for
// it.
package patience

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrNoAnswer is of a call that has not returned.
var ErrNoAnswer = errors.New("does not answer")

// Calls are calls by what they touch. The zero value is ready, and can be used by several goroutines.
type Calls struct {
	mu    sync.Mutex
	stuck map[string]stuck // those that nobody waits for any more
}

type stuck struct {
	calls int
	since time.Time
}

// Do calls fn and returns its error. When the context has ended, fn has the grace to notice that. Then it is left
// alone, with what it uses, and the error is [ErrNoAnswer] of what, or the context's own where nobody has set a
// deadline. Until it has returned nothing else is called for the same: a thread that is lost is lost once.
func (c *Calls) Do(ctx context.Context, what string, grace time.Duration, fn func() error) error {
	_, err := Ask(ctx, c, what, grace, func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// Ask is [Calls.Do] of a call that returns more than an error. What it returns too late is dropped.
func Ask[T any](ctx context.Context, c *Calls, what string, grace time.Duration, fn func() (T, error)) (T, error) {
	var none T
	if err := c.refuse(what); err != nil {
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	answered := make(chan answer, 1)
	var end sync.Mutex // parts an answer that comes just now from giving up
	left := false
	go func() {
		v, err := fn()
		end.Lock()
		defer end.Unlock()
		if left {
			c.returned(what)
			return
		}
		answered <- answer{v, err}
	}()
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	if grace > 0 {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case a := <-answered:
			return a.value, a.err
		case <-timer.C:
		}
	}
	end.Lock()
	defer end.Unlock()
	select {
	case a := <-answered:
		return a.value, a.err
	default:
	}
	left = true
	c.leave(what)
	if errors.Is(ctx.Err(), context.Canceled) {
		return none, fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return none, fmt.Errorf("%s %w", what, ErrNoAnswer)
}

func (c *Calls) refuse(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.stuck[what]; ok {
		return fmt.Errorf("%s %w since %s", what, ErrNoAnswer, s.since.Format(time.TimeOnly))
	}
	return nil
}

func (c *Calls) leave(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stuck == nil {
		c.stuck = map[string]stuck{}
	}
	s := c.stuck[what]
	if s.calls++; s.calls == 1 {
		s.since = time.Now()
	}
	c.stuck[what] = s
}

func (c *Calls) returned(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stuck[what]
	if s.calls--; s.calls > 0 {
		c.stuck[what] = s
		return
	}
	delete(c.stuck, what)
}

// Stuck are those that calls were left alone with and have not returned from, and since when.
func (c *Calls) Stuck() map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]time.Time{}
	for what, s := range c.stuck {
		out[what] = s.since
	}
	return out
}
