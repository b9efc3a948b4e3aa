package turns

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestDo: whatever takes too long, and however much of it there is, all else comes to its end, and each of it has as
// much time as every other.
func TestDo(t *testing.T) {
	for name, tt := range map[string]struct {
		long, quick int
		whole       time.Duration
		least       time.Duration // for each of the long ones, in one piece
	}{
		"time enough":   {3, 100, time.Minute, 15 * time.Second},
		"many":          {100, 100, time.Minute, 400 * time.Millisecond},
		"hardly time":   {100, 100, time.Second, 15 * time.Millisecond},
		"nothing long":  {0, 10, time.Second, 0},
		"nothing":       {0, 0, time.Second, 0},
		"a single turn": {4, 0, 250 * time.Millisecond, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.whole)
				defer cancel()
				began := time.Now()
				var mu sync.Mutex
				longest, ended := map[int]time.Duration{}, map[int]int{}
				Do(ctx, tt.long+tt.quick, Config{AtOnce: 4, First: 250 * time.Millisecond}, func(ctx context.Context, i int) bool {
					if i >= tt.long {
						mu.Lock()
						defer mu.Unlock()
						ended[i]++
						return true
					}
					began := time.Now()
					<-ctx.Done()
					mu.Lock()
					defer mu.Unlock()
					longest[i] = max(longest[i], time.Since(began))
					return false
				})
				if took := time.Since(began); took > tt.whole {
					t.Errorf("took %v of %v", took, tt.whole)
				}
				for i := range tt.long {
					if longest[i] < tt.least || longest[i] != longest[0] {
						t.Errorf("%d had %v, want %v at least, and 0 had %v", i, longest[i], tt.least, longest[0])
					}
				}
				for i := range tt.quick {
					if got := ended[tt.long+i]; got != 1 {
						t.Errorf("%d came to its end %d times", tt.long+i, got)
					}
				}
			})
		})
	}
}

// TestDoCalledOff: nothing more is begun when nobody wants it any longer.
func TestDoCalledOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	Do(ctx, 10, Config{AtOnce: 1, First: time.Hour}, func(context.Context, int) bool {
		if done++; done == 3 {
			cancel()
		}
		return false
	})
	if done != 3 {
		t.Errorf("done %d times", done)
	}
}

// TestAmong: what takes long takes no more than its part, and what others leave is for the rest.
func TestAmong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		var had [4]time.Duration
		enough := Among(ctx, len(had), func(ctx context.Context, i int) {
			began := time.Now()
			if i != 1 {
				<-ctx.Done()
			}
			had[i] = time.Since(began)
		})
		if want := [4]time.Duration{time.Second, 0, 1500 * time.Millisecond, 1500 * time.Millisecond}; had != want || enough {
			t.Errorf("%v, want %v", had, want)
		}
		var longest time.Duration
		ctx, cancel = context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		enough = Among(ctx, 40, func(ctx context.Context, i int) {
			began := time.Now()
			if i == 0 {
				select {
				case <-ctx.Done():
				case <-time.After(3 * time.Second):
				}
				longest = time.Since(began)
			}
		})
		if !enough || longest != 3*time.Second {
			t.Errorf("one of many that takes longer has %v, of the time that the others leave", longest)
		}
		if !Among(t.Context(), 3, func(context.Context, int) {}) {
			t.Error("there is no end to the time, and it was not enough")
		}
	})
}
