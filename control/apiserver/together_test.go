package apiserver

import (
	"testing"
	"time"
)

// TestWholeSeconds has timers of about a second end together, and each second, however they were set; short ones end
// when they should.
func TestWholeSeconds(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(100_000 + int64(ms)) }
	for _, c := range []struct {
		now   int // in milliseconds after a whole second
		timer time.Duration
		ends  int
	}{
		{0, time.Second, 1000},
		{0, 1250 * time.Millisecond, 1000},
		{1, 1250 * time.Millisecond, 1000},
		{200, 1100 * time.Millisecond, 1000},
		{400, 1200 * time.Millisecond, 2000},
		{999, time.Second, 2000},
		{700, 15 * time.Second, 16000},
		{700, 100 * time.Millisecond, 800},
		{700, 0, 700},
	} {
		if got := at(c.now).Add(untilWhole(at(c.now), c.timer)); !got.Equal(at(c.ends)) {
			t.Errorf("a timer of %v that is set at %d ms ends at %d ms, want %d", c.timer, c.now, got.Sub(at(0)).Milliseconds(), c.ends)
		}
	}
}
