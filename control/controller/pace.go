package controller

import (
	"sync"
	"time"
)

const (
	// atOnce is how many keys a change leads to whose turn is not held back. What people have is less: a pod is of a
	// service or two.
	atOnce = 10
	// paceBurst is how many keys beyond these a namespace has looked at without a pause, and paceEvery how soon another
	// is when it has.
	paceBurst = 1000
	paceEvery = 10 * time.Millisecond
)

// pace spreads over a time what single changes lead to in great numbers. A pod that 10,000 services of its namespace
// select leads to 10,000 writes, and it may get ready and unready each second: without a pause between them they would
// be as many as the API server takes. A key that waits for its turn is looked at once, whatever has changed meanwhile.
type pace[K comparable] struct {
	space func(K) string
	now   func() time.Time

	mu    sync.Mutex
	next  map[string]time.Time // of a namespace, when it has had time for all that it was given
	waits map[K]bool
}

func newPace[K comparable](space func(K) string) *pace[K] {
	return &pace[K]{space: space, now: time.Now, next: map[string]time.Time{}, waits: map[K]bool{}}
}

// after is how long a key is to wait, and false where it waits already.
func (p *pace[K]) after(key K) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits[key] {
		return 0, false
	}
	p.waits[key] = true
	now, space := p.now(), p.space(key)
	next, known := p.next[space]
	if !known {
		p.forget(now)
	}
	if next.Before(now) {
		next = now
	}
	next = next.Add(paceEvery)
	p.next[space] = next
	return max(0, next.Sub(now)-paceBurst*paceEvery), true
}

// forget forgets the namespaces for which it is as if they had never been given anything.
func (p *pace[K]) forget(now time.Time) {
	for space, next := range p.next {
		if !next.After(now) {
			delete(p.next, space)
		}
	}
}

// looked is called when a key is about to be looked at: what changes from now on is a reason to look again.
func (p *pace[K]) looked(key K) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waits, key)
}
