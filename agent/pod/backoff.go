package pod

import (
	"time"

	"github.com/berth-node/berth/agent/pod/spec"
)

// delays says how long to wait before something is tried again.
type delays struct{ initial, max, reset time.Duration }

// Trying again what failed in the node itself begins sooner than restarting what exits: nothing of the user's runs in between. It
// never is without delay, because such failures come at once.
const retryInitial = time.Second

// restart is when a container that has exited may run again, and the delay that its successor will carry. Each container carries
// the delay that applies when it exits soon: so nothing needs to be remembered, and a restart of the agent changes nothing.
func (d delays) restart(c *container) (at time.Time, next time.Duration) {
	began, ended := time.Unix(0, c.GetStartedAt()), time.Unix(0, c.GetFinishedAt())
	delay := min(spec.Backoff(c.GetAnnotations()), d.max)
	if d.initial == 0 {
		return ended, 0
	}
	if c.GetStartedAt() > 0 && ended.Sub(began) >= d.reset {
		return ended, d.initial
	}
	if delay == 0 {
		return ended, min(d.initial, d.max)
	}
	return ended.Add(delay), min(2*delay, d.max)
}

// pull is the delay after the nth failed pull in a row.
func (d delays) pull(n int) time.Duration { return double(max(d.initial, retryInitial), d.max, n) }

// retry is the delay after anything else has failed n times in a row.
func (d delays) retry(n int) time.Duration { return double(retryInitial, d.max, n) }

func double(initial, limit time.Duration, n int) time.Duration {
	limit = max(limit, retryInitial)
	for ; n > 1 && initial < limit; n-- {
		initial *= 2
	}
	return min(initial, limit)
}
