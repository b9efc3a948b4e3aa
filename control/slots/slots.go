// Package slots bounds how many requests are under way. More at a time are not answered sooner: they wait in the queues
// of the API server, and a queue that is full refuses what comes, and has it wait for seconds.
package slots

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// patience is how long a request may take before it counts no more: somebody's webhook that does not answer holds up
// what is his, and not what others have to write.
const patience = time.Second

// Slots are for so many requests.
type Slots struct{ free *semaphore.Weighted }

// New makes slots for so many requests at a time.
func New(count int) *Slots { return &Slots{semaphore.NewWeighted(int64(count))} }

// Take waits for a slot, in the order in which others wait. It is given back by done, or when the request has taken too
// long. It fails when ctx ends before.
func (s *Slots) Take(ctx context.Context) (done func(), err error) {
	if err := s.free.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	back := sync.OnceFunc(func() { s.free.Release(1) })
	late := time.AfterFunc(patience, back)
	return func() { late.Stop(); back() }, nil
}

// Wait waits until there is a slot for one that comes. It fails when ctx ends before.
func (s *Slots) Wait(ctx context.Context) error {
	err := s.free.Acquire(ctx, 1)
	if err == nil {
		s.free.Release(1)
	}
	return err
}
