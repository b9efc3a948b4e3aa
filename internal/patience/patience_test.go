package patience

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnswer(t *testing.T) {
	var c Calls
	why := errors.New("why")
	if v, err := Ask(t.Context(), &c, "a", 0, func() (int, error) { return 7, why }); v != 7 || !errors.Is(err, why) {
		t.Errorf("%d, %v", v, err)
	}
	if len(c.Stuck()) > 0 {
		t.Errorf("stuck: %v", c.Stuck())
	}
}

// What does not return is left alone, and is not called again before it has returned. Others are.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		hold := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.Do(ctx, "/dead", time.Second, func() error { <-hold; return nil })
		if !errors.Is(err, ErrNoAnswer) || !strings.HasPrefix(err.Error(), "/dead does not answer") {
			t.Errorf("%v", err)
		}
		called := false
		if err := c.Do(t.Context(), "/dead", 0, func() error { called = true; return nil }); !errors.Is(err, ErrNoAnswer) || called {
			t.Errorf("called again: %t, %v", called, err)
		}
		if err := c.Do(t.Context(), "/alive", 0, func() error { return nil }); err != nil {
			t.Errorf("%v", err)
		}
		close(hold)
		synctest.Wait()
		if err := c.Do(t.Context(), "/dead", 0, func() error { return nil }); err != nil || len(c.Stuck()) > 0 {
			t.Errorf("after it has returned: %v, %v", err, c.Stuck())
		}
	})
}

// Who notices the end of the context within the grace is waited for, and gives the reason itself.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		own := errors.New("undone")
		if err := c.Do(ctx, "a", time.Second, func() error { time.Sleep(time.Millisecond); return own }); !errors.Is(err, own) {
			t.Errorf("%v", err)
		}
		if err := c.Do(ctx, "a", time.Second, func() error { time.Sleep(time.Minute); return own }); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if len(c.Stuck()) != 1 {
			t.Errorf("stuck: %v", c.Stuck())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}
