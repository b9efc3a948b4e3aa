package apiserver

import (
	"time"

	"k8s.io/utils/clock"
)

// together is a clock whose longer timers end at whole seconds. Each cache has one of about a second, for bookmarks,
// and the library spreads them: twenty caches had a process that does nothing wake twenty times a second. What ends at
// the same time wakes it once.
type together struct{ clock.RealClock }

// shortTimer is the least that is rounded: who has a shorter one waits for its end.
const shortTimer = time.Second

// NewTimer implements [clock.Clock].
func (together) NewTimer(d time.Duration) clock.Timer {
	return timer{clock.RealClock{}.NewTimer(untilWhole(time.Now(), d))}
}

// timer is one that ends with others, each time it is set.
type timer struct{ clock.Timer }

// Reset implements [clock.Timer].
func (t timer) Reset(d time.Duration) bool { return t.Timer.Reset(untilWhole(time.Now(), d)) }

// untilWhole is how long a timer runs that ends at the whole second that is nearest.
func untilWhole(now time.Time, d time.Duration) time.Duration {
	if d < shortTimer {
		return d
	}
	return now.Add(d).Round(time.Second).Sub(now)
}
