// Package oplock has a mutex whose waiters may give up.
package oplock

import "context"

// Lock is held by what changes a thing.
type Lock chan struct{}

// New returns a lock that nobody holds.
func New() Lock { return make(Lock, 1) }

// Lock takes the lock, or fails when ctx ends.
func (l Lock) Lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unlock gives it back.
func (l Lock) Unlock() { <-l }
