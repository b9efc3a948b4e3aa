package apiserver

import (
	"math/rand/v2"
	"time"
)

const (
	firstDelay = 250 * time.Millisecond
	mostDelay  = 10 * time.Second
	mostRefuse = 5 * time.Minute
	// spread is over which the agents of a cluster come back when its server does.
	spread = 500 * time.Millisecond
)

// pace is how many calls go on at once. While the server does not answer, one at a time finds out whether it does
// again; then they become more from answer to answer, so that who has just come back is not run over.
type pace struct {
	most, limit, running int

	until    time.Time // no call begins before it
	ordered  bool      // the server itself has said until when
	failures int
	epoch    int // counts failures, of which those that began together count once
}

func (p *pace) may(now time.Time) bool { return p.running < p.limit && !now.Before(p.until) }

// begin is a call's; away wants back what it returns.
func (p *pace) begin() int {
	p.running++
	return p.epoch
}

// ok takes that the server has answered. It says whether it had not before.
func (p *pace) ok() bool {
	back := p.failures > 0
	p.failures, p.until, p.ordered, p.limit = 0, time.Time{}, false, min(p.most, p.limit*2)
	return back
}

// away takes that a call had no answer, or that the server wants to be left alone for that long. It says whether that
// is news.
func (p *pace) away(epoch int, now time.Time, after time.Duration) bool {
	if epoch != p.epoch {
		return false // of those that had begun before the last failure
	}
	p.epoch++
	p.failures++
	p.limit, p.ordered = 1, after > 0
	p.until = now.Add(max(delay(p.failures, firstDelay, mostDelay), after))
	return p.failures == 1
}

// hears takes that somebody else has heard from the server: there is no need to wait for longer, unless it said so.
func (p *pace) hears(now time.Time) {
	if p.failures == 0 || p.ordered {
		return
	}
	if at := now.Add(rand.N(spread)); at.Before(p.until) {
		p.until = at
	}
}

// delay is how long to wait after so many failures: about twice as long each time.
func delay(failures int, first, most time.Duration) time.Duration {
	d := most
	if n := failures - 1; n < 20 {
		d = min(first<<n, most)
	}
	return d/2 + rand.N(d)
}

// trouble is what one pod alone has with the server.
type trouble struct {
	failures int
	until    time.Time
	refused  bool   // and would be again, as it is
	told     string // the refusal that the log has
}

// again has it tried again, later each time.
func (t *trouble) again(now time.Time, first, most time.Duration) {
	t.failures++
	t.until = now.Add(delay(t.failures, first, most))
}

// retry has what was refused tried at once: it is not what it was.
func (t *trouble) retry() {
	if t.refused {
		t.refused, t.failures, t.until = false, 0, time.Time{}
	}
}
