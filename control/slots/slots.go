// Package slots bounds how many requests are under way. More at a time are not answered sooner: they wait in the queues
// of the API server, and a queue that is full refuses what comes, and has it wait for seconds.
package slots

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// patience is how long a request may take before it counts no more among those of all: somebody's webhook that does
// not answer holds up what is his, and not what others have to write.
const patience = time.Second

// Slots are for so many requests.
type Slots struct {
	count int64
	free  *semaphore.Weighted

	mu     sync.Mutex
	shares map[string]*share
}

// share is what one namespace has of the slots, which is all of them as long as its requests are answered.
type share struct {
	free *semaphore.Weighted
	used int // by those that have a slot of it or wait for one
}

// New makes slots for so many requests at a time.
func New(count int) *Slots {
	return &Slots{count: int64(count), free: semaphore.NewWeighted(int64(count)), shares: map[string]*share{}}
}

// Take waits for a slot for a request of a namespace, in the order in which others wait. It is given back by done, and
// to those of other namespaces when the request has taken too long, too. It fails when ctx ends before.
func (s *Slots) Take(ctx context.Context, namespace string) (done func(), err error) {
	own := s.enter(namespace)
	if err := own.free.Acquire(ctx, 1); err != nil {
		s.leave(namespace, own)
		return nil, err
	}
	end, err := s.TakeAny(ctx)
	if err != nil {
		own.free.Release(1)
		s.leave(namespace, own)
		return nil, err
	}
	return sync.OnceFunc(func() {
		end()
		own.free.Release(1)
		s.leave(namespace, own)
	}), nil
}

// TakeAny is Take for requests that are all of one namespace, or whose namespaces do not matter: none has a share.
func (s *Slots) TakeAny(ctx context.Context) (done func(), err error) {
	if err := s.free.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	back := sync.OnceFunc(func() { s.free.Release(1) })
	late := time.AfterFunc(patience, back)
	return func() {
		late.Stop()
		back()
	}, nil
}

func (s *Slots) enter(namespace string) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.shares[namespace]
	if own == nil {
		own = &share{free: semaphore.NewWeighted(s.count)}
		s.shares[namespace] = own
	}
	own.used++
	return own
}

func (s *Slots) leave(namespace string, own *share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if own.used--; own.used == 0 {
		delete(s.shares, namespace)
	}
}

// Wait waits until there is a slot for a request of a namespace that has none under way. It fails when ctx ends before.
func (s *Slots) Wait(ctx context.Context) error {
	err := s.free.Acquire(ctx, 1)
	if err == nil {
		s.free.Release(1)
	}
	return err
}
