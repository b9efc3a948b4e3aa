package oplock

import (
	"context"
	"errors"
	"testing"
)

func TestWaiterGivesUp(t *testing.T) {
	l := New()
	if err := l.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() { waited <- l.Lock(ctx) }()
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	l.Unlock()
	// One that nobody holds is had whether or not the caller has given up: what is to be undone is undone.
	if err := l.Lock(ctx); err != nil {
		t.Errorf("got %v", err)
	}
}
