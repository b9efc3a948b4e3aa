package eviction

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// pressure is what the node says of itself. A condition holds from when a threshold of it is met until it has not been
// met for the transition period: it does not flap with what it tells of.
type pressure struct {
	period time.Duration
	last   map[corev1.NodeConditionType]time.Time // when it was last seen to be met
	now    Conditions
	met    map[corev1.NodeConditionType]bool
	kept   Conditions // as somebody has heard of them last
	unkept bool       // more has changed since than the time
}

// keepEvery is how far behind the time may be that is kept of a condition that is met.
const keepEvery = 10 * time.Second

// words are kubelet's of a condition, for whoever compares them.
type words struct {
	of                  corev1.NodeConditionType
	trueReason, trueMsg string
	falseReason, noMsg  string
}

func allWords() []words {
	return []words{
		{
			corev1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
			"KubeletHasSufficientMemory", "kubelet has sufficient memory available",
		},
		{
			corev1.NodeDiskPressure, "KubeletHasDiskPressure", "kubelet has disk pressure",
			"KubeletHasNoDiskPressure", "kubelet has no disk pressure",
		},
		{
			corev1.NodePIDPressure, "KubeletHasInsufficientPID", "kubelet has insufficient PID available",
			"KubeletHasSufficientPID", "kubelet has sufficient PID available",
		},
	}
}

// newPressure has the conditions hold on that were last seen to be met less than a period ago.
func newPressure(period time.Duration, before Conditions, at time.Time) pressure {
	p := pressure{period: period, last: map[corev1.NodeConditionType]time.Time{}, met: map[corev1.NodeConditionType]bool{}}
	for _, w := range allWords() {
		c := w.condition(false, at)
		for _, b := range before {
			if b.Last.After(at) {
				b.Last = at // the clock was set
			}
			if b.Type == w.of && b.Status && !b.Last.IsZero() && at.Sub(b.Last) < period {
				c = w.condition(true, b.Since)
				c.Last, p.last[w.of] = b.Last, b.Last
			}
		}
		p.now = append(p.now, c)
	}
	p.kept = p.all()
	return p
}

// condition is the condition as it holds, or not, since then.
func (w words) condition(holds bool, since time.Time) Condition {
	if holds {
		return Condition{Type: w.of, Status: true, Reason: w.trueReason, Message: w.trueMsg, Since: since}
	}
	return Condition{Type: w.of, Reason: w.falseReason, Message: w.noMsg, Since: since}
}

// update brings the conditions up to date with those that are met at this moment, and says whether one has changed.
func (p *pressure) update(met map[corev1.NodeConditionType]bool, at time.Time, next *earliest) bool {
	changed := false
	for i, w := range allWords() {
		if met[w.of] {
			p.last[w.of] = at
		}
		p.unkept = p.unkept || met[w.of] != p.met[w.of]
		p.met[w.of] = met[w.of]
		last, ever := p.last[w.of]
		holds := ever && (met[w.of] || at.Sub(last) < p.period)
		if holds && !met[w.of] {
			next.add(last.Add(p.period))
		}
		if holds != p.now[i].Status {
			p.now[i], changed = w.condition(holds, at), true
		}
		p.now[i].Last = last
	}
	p.unkept = p.unkept || changed
	return changed
}

// worthKeeping says whether there is more to keep than when that was last asked.
func (p *pressure) worthKeeping() bool {
	for i := range p.now {
		p.unkept = p.unkept || p.now[i].Last.Sub(p.kept[i].Last) >= keepEvery
	}
	worth := p.unkept
	if p.unkept = false; worth {
		p.kept = p.all()
	}
	return worth
}

func (p *pressure) all() Conditions { return slices.Clone(p.now) }
