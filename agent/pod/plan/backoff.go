package plan

import (
	"time"

	"github.com/berth-node/berth/agent/pod/spec"
)

// Delays says how long to wait before something is tried again.
type Delays struct{ Initial, Max, Reset time.Duration }

// RetryInitial is the first delay before what failed in the node itself is tried again. It is shorter than that of what
// exits: nothing of the user's runs in between. It never is without delay, because such failures come at once.
const RetryInitial = time.Second

// restart is when a container that has exited may run again, and the delay that its successor will carry. Each
// container carries the delay that applies when it exits soon: so nothing needs to be remembered, and a restart of the
// agent changes nothing.
func (d Delays) restart(c *Container) (at time.Time, next time.Duration) {
	began, ended := time.Unix(0, c.GetStartedAt()), time.Unix(0, c.GetFinishedAt())
	delay := min(spec.Backoff(c.GetAnnotations()), d.Max)
	if d.Initial == 0 {
		return ended, 0
	}
	if c.GetStartedAt() > 0 && ended.Sub(began) >= d.Reset {
		return ended, d.Initial
	}
	if delay == 0 {
		return ended, min(d.Initial, d.Max)
	}
	return ended.Add(delay), min(2*delay, d.Max)
}

// Pull is the delay after the nth failed pull in a row.
func (d Delays) Pull(n int) time.Duration { return Backoff(max(d.Initial, RetryInitial), d.Max, n) }

// Retry is the delay after anything else has failed n times in a row.
func (d Delays) Retry(n int) time.Duration { return Backoff(RetryInitial, d.Max, n) }

// Backoff is the delay after the nth failure: initial, and twice as long with each, up to limit.
func Backoff(initial, limit time.Duration, n int) time.Duration {
	limit = max(limit, RetryInitial)
	for ; n > 1 && initial < limit; n-- {
		initial *= 2
	}
	return min(initial, limit)
}
