package eviction

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// act begins what can be begun of what is due.
func (m *Manager) act(ctx context.Context, dues []due, now time.Time, next *earliest) {
	for _, d := range dues {
		resource := d.signal().Resource()
		if d.excess != nil {
			m.actOver(ctx, d, now)
			continue
		}
		if m.flying(resource, &d) {
			continue
		}
		if m.waits(&d) {
			continue
		}
		if waits, until := m.settling.waits(resource, m.judge.latest, now); waits {
			next.add(until)
			continue
		}
		if rest := m.tried.rests[resource]; rest.until.After(now) {
			next.add(rest.until)
			continue
		}
		m.begin(ctx, d, now)
	}
}

// actOver begins the end of a pod that is above a limit of its own. It waits for no other of these, so that one that
// cannot be ended keeps nobody, but for one that goes for the sake of the node: that may be the same.
func (m *Manager) actOver(ctx context.Context, d due, now time.Time) {
	resource := d.signal().Resource()
	if f := m.flights[flightOf{resource: resource}]; f != nil && !f.reclaim || m.flights[flightOf{resource, d.excess.UID}] != nil {
		return
	}
	m.begin(ctx, d, now)
}

// flying says whether anything is under way about a resource, and leaves pods that end no more time where there is
// none.
func (m *Manager) flying(resource corev1.ResourceName, d *due) bool {
	flies := false
	for of, f := range m.flights {
		if of.resource != resource {
			continue
		}
		flies = true
		if f.soft() && !f.reclaim && !d.soft() {
			m.log.Info("pod that is being evicted has no more time", "signal", string(d.signal()), "available", d.reading.Available)
			f.harden(*d)
		}
	}
	return flies
}

// waits says whether something else is to be seen to the end before. Memory waits for nothing else: it is gone before
// any disk is.
func (m *Manager) waits(d *due) bool {
	if d.signal().Resource() == corev1.ResourceMemory && !d.soft() {
		return false
	}
	for _, f := range m.flights {
		if d.soft() || !f.soft() {
			return true
		}
	}
	return false
}

// begin does one thing about what is due. Before a pod goes for the sake of a disk, what nobody needs goes.
func (m *Manager) begin(ctx context.Context, d due, now time.Time) {
	of := d.signal()
	f := &flight{due: d, node: m.cfg.Node, quick: m.cfg.Sensor.Quick, policy: &m.cfg.Policy}
	f.reclaim = of.Condition() == corev1.NodeDiskPressure && !m.tried.reclaimed[of]
	f.passed, f.given = m.tried.pods(now)
	f.count = m.judge.time(of, countLeast, countPatience)
	f.clear = m.judge.time(of, reclaimLeast, reclaimPatience)
	if m.cfg.Began != nil && !m.tried.reclaimed[of] && (f.reclaim || of.Condition() != corev1.NodeDiskPressure) {
		m.cfg.Began(of)
	}
	ctx, f.cancel = context.WithCancelCause(ctx)
	m.flights[f.of()] = f
	go func() {
		defer f.cancel(nil)
		m.landings <- f.fly(ctx, now)
	}()
}

// arrive takes note of a flight's end.
func (m *Manager) arrive(l landing) {
	now := time.Now()
	resource := l.flight.resource()
	delete(m.flights, l.flight.of())
	if resource == corev1.ResourceMemory {
		m.standstill.over() // it stands still for as long again until another pod goes
	}
	if l.flight.due.excess != nil {
		m.excesses.note(&l, &m.tried, now)
	} else {
		m.tried.note(&l, now)
		m.excesses.left(&l, now)
	}
	if l.outcome == outcomeEvicted || l.outcome == outcomeReclaimed && l.decision.Reclaimed > 0 || l.removes() {
		m.settling.begin(&l, now)
	}
	m.landed = append(m.landed, l)
}

// removes says whether a pod that was told to end for the sake of a disk may be removing its files still.
func (l *landing) removes() bool {
	return l.decision.Signal.Condition() == corev1.NodeDiskPressure && errors.Is(l.err, ErrNotGone)
}
