package pod

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1)
		if err := g.enter(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 3)
		for _, who := range []struct {
			name   string
			begins bool
		}{{"first", true}, {"second", true}, {"urgent", false}} {
			go func() {
				if g.enter(context.Background(), who.begins) == nil {
					order <- who.name
				}
			}()
			synctest.Wait()
		}
		for _, want := range []string{"urgent", "first", "second"} {
			g.leave()
			if got := <-order; got != want {
				t.Errorf("%s came through, not %s", got, want)
			}
		}
		g.leave()
	})
}

// Who gives up does not take a place with it, not even when its turn comes in that moment.
func TestGateGivenUp(t *testing.T) {
	for range 100 {
		g := newGate(1)
		if err := g.enter(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.enter(ctx, true) }()
		go cancel()
		g.leave()
		if <-done == nil {
			g.leave()
		}
		if g.free != 1 || len(g.queue[0])+len(g.queue[1]) != 0 {
			t.Fatalf("%d free, %v wait", g.free, g.queue)
		}
	}
}

// While somebody waits outside the next one has the place, which is waited for again after that.
func TestGateOutside(t *testing.T) {
	g := newGate(1)
	if err := g.enter(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	err := g.outside(func() error {
		if err := g.enter(t.Context(), true); err != nil {
			return err
		}
		g.leave()
		return context.Canceled
	})
	if !errors.Is(err, context.Canceled) || g.free != 0 {
		t.Errorf("it comes back with %v, and %d places are free", err, g.free)
	}
}
