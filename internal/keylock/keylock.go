// Package keylock has a lock for each key, whose waiters may give up.
package keylock

import (
	"context"
	"sync"
)

// Locks are locks by key, of which those that nobody holds or waits for cost nothing. Their zero value is ready.
type Locks[K comparable] struct {
	Places int // how many may hold a key at once; 0: one

	mu    sync.Mutex
	inUse map[K]*lock
}

type lock struct {
	held  chan struct{} // has a place for each holder; who waits has one in turn
	users int           // that hold it or wait
}

// Lock takes the lock of a key, or fails with the cause of the context's end when that comes first. One that is free is
// taken whatever the context: what is to be undone is undone. unlock gives it back, once.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	one := l.enter(key)
	unlock = func() {
		<-one.held
		l.leave(key, one)
	}
	select {
	case one.held <- struct{}{}:
		return unlock, nil
	default:
	}
	select {
	case one.held <- struct{}{}:
		return unlock, nil
	case <-ctx.Done():
		l.leave(key, one)
		return nil, context.Cause(ctx)
	}
}

func (l *Locks[K]) enter(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.inUse[key]
	if one == nil {
		one = &lock{held: make(chan struct{}, max(l.Places, 1))}
		if l.inUse == nil {
			l.inUse = map[K]*lock{}
		}
		l.inUse[key] = one
	}
	one.users++
	return one
}

func (l *Locks[K]) leave(key K, one *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(l.inUse, key)
	}
}
