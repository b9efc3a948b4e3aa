package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestOneHoldsAKey(t *testing.T) {
	var l Locks[string]
	var wait sync.WaitGroup
	inside := map[string]int{}
	for range 50 {
		for _, key := range []string{"a", "b"} {
			wait.Go(func() {
				unlock, err := l.Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				defer unlock()
				if key == "a" { // the race detector sees two at once
					inside["a"]++
				}
			})
		}
	}
	wait.Wait()
	if inside["a"] != 50 || len(l.inUse) > 0 {
		t.Errorf("%v, %d locks are left", inside, len(l.inUse))
	}
}

func TestWaiterGivesUp(t *testing.T) {
	var l Locks[int]
	unlock, err := l.Lock(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := l.Lock(ctx, 1)
		failed <- err
	}()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("a waiter whose context has ended: %v", err)
	}
	other, err := l.Lock(ctx, 2)
	if err != nil {
		t.Errorf("a key that nobody holds, after the end of the context: %v", err)
	}
	other()
	waits := make(chan func())
	go func() {
		unlock, err := l.Lock(t.Context(), 1)
		if err != nil {
			t.Error(err)
		}
		waits <- unlock
	}()
	unlock()
	(<-waits)()
	if len(l.inUse) > 0 {
		t.Errorf("%d locks are left", len(l.inUse))
	}
}

func TestPlaces(t *testing.T) {
	l := Locks[string]{Places: 2}
	first, err1 := l.Lock(t.Context(), "a")
	second, err2 := l.Lock(t.Context(), "a")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, why) {
		t.Errorf("a third one had a place, or not the cause: %v", err)
	}
	first()
	third, err := l.Lock(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	second()
	third()
	if len(l.inUse) > 0 {
		t.Errorf("%d locks are left", len(l.inUse))
	}
}
