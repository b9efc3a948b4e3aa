package apiserver

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// reach says whether the server can be had. One follower, that of the pods, finds out for all of them: a node has
// hundreds, and a server that is started has every node's.
type reach struct {
	mu   sync.Mutex
	back chan struct{} // closed when the server is back; nil: it is not away
	many int           // how many wait for it
}

// away notes that the server is not to be had, and says whether that is new.
func (r *reach) away() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back != nil {
		return false
	}
	r.back = make(chan struct{})
	return true
}

// here notes that it is, and says whether that is new.
func (r *reach) here() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.back == nil {
		return false
	}
	close(r.back)
	r.back = nil
	return true
}

// When a server is back, its clients return within a time for each of them, and within so long at most.
const (
	spreadEach = 5 * time.Millisecond
	spreadMost = 2 * time.Second
)

// wait waits until the server is to be had, and a little more so that not all come at once.
func (r *reach) wait(ctx context.Context) {
	r.mu.Lock()
	back := r.back
	if back == nil {
		r.mu.Unlock()
		return
	}
	r.many++
	r.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-back:
	}
	r.mu.Lock()
	spread := min(time.Duration(r.many)*spreadEach, spreadMost)
	r.many--
	r.mu.Unlock()
	pause(ctx, rand.N(spread))
}

// pause waits, and less when ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
