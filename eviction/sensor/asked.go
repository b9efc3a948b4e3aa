package sensor

import (
	"context"
	"sync"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

const (
	// diskPatience is how long who decides waits for file systems. They answer from memory, in microseconds, unless the
	// disk is busy or the machine has too little memory to keep what they have to answer with.
	diskPatience = 20 * time.Millisecond
	// diskLimit is how long one question may take; a file system that hangs is left alone by who asks it.
	diskLimit = 5 * time.Second
)

// asked is a question to the file systems, one at a time, for which nobody waits for long.
type asked struct {
	ask  func(context.Context) (signal.Readings, error)
	late func() // an answer is there that somebody has not waited for

	mu      sync.Mutex
	pending *question // nil: the last answer was handed out
}

// question is closed when the answer is there.
type question struct {
	done     chan struct{}
	readings signal.Readings
	err      error
	missed   bool // somebody has not waited for it
}

// read is the answer to a question that nobody has had the answer of, or nothing when it takes too long.
func (a *asked) read(ctx context.Context) (signal.Readings, error) {
	a.mu.Lock()
	q := a.pending
	if q == nil {
		q = &question{done: make(chan struct{})}
		a.pending = q
		go a.answer(context.WithoutCancel(ctx), q)
	}
	a.mu.Unlock()
	patience := time.NewTimer(diskPatience)
	defer patience.Stop()
	select {
	case <-q.done:
	case <-ctx.Done():
	case <-patience.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-q.done:
	default:
		q.missed = true
		return nil, nil
	}
	if a.pending == q {
		a.pending = nil
	}
	return q.readings, q.err
}

func (a *asked) answer(ctx context.Context, q *question) {
	ctx, cancel := context.WithTimeout(ctx, diskLimit)
	defer cancel()
	q.readings, q.err = a.ask(ctx)
	a.mu.Lock()
	close(q.done)
	missed := q.missed
	a.mu.Unlock()
	if missed {
		a.late()
	}
}
