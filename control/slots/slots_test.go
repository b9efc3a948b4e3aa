package slots

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlots has more requests than there are slots for: one more is let in for each that is done, and of another
// namespace for each that takes too long.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(2)
		take := func(namespace string) func() {
			t.Helper()
			done, err := s.Take(t.Context(), namespace)
			if err != nil {
				t.Fatal(err)
			}
			return done
		}
		refused := func(namespace, what string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience/4)
			defer cancel()
			if _, err := s.Take(ctx, namespace); err == nil {
				t.Errorf("%s: a slot is taken", what)
			}
		}
		first, second := take("a"), take("a")
		refused("b", "two are under way")
		first()
		first()
		third := take("b")
		refused("b", "one was done, twice")
		refused("a", "one was done, and the other has it")
		third()
		fourth := take("a")
		time.Sleep(patience)
		refused("a", "two of the namespace are not answered")
		fifth, sixth := take("b"), take("b")
		refused("c", "two more are under way")
		second()
		fourth()
		refused("c", "those are answered late")
		fifth()
		if err := s.Wait(t.Context()); err != nil {
			t.Errorf("one is done: %v", err)
		}
		sixth()
		if len(s.shares) > 0 {
			t.Errorf("%d namespaces are remembered", len(s.shares))
		}
	})
}

// TestAny has requests whose namespaces do not matter let others in when they take too long.
func TestAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1)
		take := func() func() {
			t.Helper()
			done, err := s.TakeAny(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return done
		}
		first, began := take(), time.Now()
		second := take()
		if waited := time.Since(began); waited != patience {
			t.Errorf("one waits %s for another that takes too long", waited)
		}
		first()
		ctx, cancel := context.WithTimeout(t.Context(), patience/2)
		defer cancel()
		if _, err := s.TakeAny(ctx); err == nil {
			t.Error("a slot is free that was given back twice")
		}
		second()
		take()()
	})
}
