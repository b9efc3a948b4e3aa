package slots

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlots has more requests than there are slots for: one more is let in for each that is done, and for each that
// takes too long, once.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(2)
		take := func() func() {
			t.Helper()
			done, err := s.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return done
		}
		full := func(what string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), patience/4)
			defer cancel()
			if s.Wait(ctx) == nil {
				t.Errorf("%s: there is a slot", what)
			}
			if _, err := s.Take(ctx); err == nil {
				t.Errorf("%s: a slot is taken", what)
			}
		}
		first, second := take(), take()
		full("two are under way")
		first()
		first()
		third := take()
		full("one was done, twice")
		time.Sleep(patience)
		fourth, fifth := take(), take() // of the others none is answered
		full("two more are under way")
		second()
		third()
		full("those are answered late")
		fourth()
		fifth()
		if err := s.Wait(t.Context()); err != nil {
			t.Errorf("nothing is under way: %v", err)
		}
	})
}
