package probes

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The delays of a loop that waits for its first success: a server that has just come up is noticed at once, and one
// that takes minutes is not asked a thousand times.
const (
	eagerFirst  = 25 * time.Millisecond
	eagerGrowth = 1.5
)

// Loop is one probe of one container.
type Loop struct {
	Kind      Kind
	Probe     *corev1.Probe
	Period    time.Duration
	StartedAt time.Time // of the container, which the initial delay counts from
	Ask       Question
	// Report is called from the loop when the result changes, with the first result too. A readiness or startup probe
	// that has not succeeded yet is not reported as failed until it has failed as often as its threshold says.
	Report func(Result)
	// Fast asks often until the first success (startup and readiness only). Failures still count once a period, so that
	// the threshold means the time that its author meant.
	Fast bool
}

// Run asks until ctx ends. A startup probe ends with its first success.
func (l *Loop) Run(ctx context.Context) {
	c := counter{success: l.Probe.SuccessThreshold, failure: l.Probe.FailureThreshold}
	timer := time.NewTimer(time.Until(l.StartedAt.Add(time.Duration(l.Probe.InitialDelaySeconds) * time.Second)))
	defer timer.Stop()
	fast := l.Fast && l.Kind != Liveness
	delay := eagerFirst
	var nextCount time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		begin := time.Now()
		outcome, message := l.ask(ctx)
		if ctx.Err() != nil {
			return // the container has ended: its silence is no answer
		}
		if outcome == Success {
			fast = false
		}
		counts := outcome == Success || !begin.Before(nextCount)
		if counts {
			nextCount = begin.Add(l.Period)
			if changed, ok := c.add(outcome); changed {
				l.Report(Result{OK: ok, Message: message})
				if ok && l.Kind == Startup {
					return
				}
			}
		}
		wait := l.Period
		if fast {
			wait = min(delay, l.Period, nextCount.Sub(begin)) // not past the moment at which a failure counts
			// Grown on and on it would be more than a duration has, and the next question in 292 years.
			delay = min(time.Duration(float64(delay)*eagerGrowth), l.Period)
		}
		timer.Reset(max(0, wait-time.Since(begin)))
	}
}

func (l *Loop) ask(ctx context.Context) (Outcome, string) {
	timeout := time.Duration(max(1, l.Probe.TimeoutSeconds)) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return l.Ask(ctx)
}

// counter applies a probe's thresholds to its answers.
type counter struct {
	success, failure int32

	last  Outcome
	run   int32 // how many answers in a row were last
	known bool
	ok    bool
}

// add takes an answer and says whether the result has changed with it, and to what.
func (c *counter) add(o Outcome) (changed, ok bool) {
	if o == Unknown {
		return false, c.ok
	}
	if o != c.last {
		c.run = 0
	}
	c.last = o
	c.run++
	need := max(1, c.failure)
	if o == Success {
		need = max(1, c.success)
	}
	if c.run < need || c.known && c.ok == (o == Success) {
		// A liveness probe that goes on failing is reported once a threshold, in case the restart it asked for never
		// came.
		if o == Failure && c.known && c.run%need == 0 {
			return true, false
		}
		return false, c.ok
	}
	c.known, c.ok = true, o == Success
	return true, c.ok
}
