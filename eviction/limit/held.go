package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/sensor"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/internal/patience"
)

// keptReadings are as many as a pace is drawn through.
const keptReadings = 32

// held is a pod that is held to limits, with what is known of it. All that is in here goes with it.
type held struct {
	pod     *corev1.Pod
	free    map[string]unix.Statfs_t // at the last count, of what it writes to
	known   bool                     // it has been counted
	history []signal.Reading         // of what is left until the nearest limit
	excess  *Excess
	failed  string        // why it could not be counted
	turn    time.Duration // how long it may be counted

	next   time.Time     // the next count
	rested time.Time     // not before that
	last   time.Duration // between the last two
}

func newHeld(pod *corev1.Pod, directories []string) *held {
	h := &held{pod: pod, free: map[string]unix.Statfs_t{}, turn: first, last: slow}
	for _, dir := range directories {
		h.free[dir] = unix.Statfs_t{}
	}
	return h
}

// counted is what came of a count.
type counted struct {
	of     *held
	began  time.Time
	took   time.Duration
	same   bool // nothing was written, and nothing was counted
	part   bool // there was no time for all of it: there is as much at least
	levels []level
	err    error
}

// count counts what the pod has, unless nothing was written since the last time to any file system that it writes to.
// It returns in time, also where a file system does not answer.
func (h *held) count(ctx context.Context, m *Meter) counted {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	out := counted{of: h, began: time.Now()}
	if !h.written(ctx, m) && h.known {
		out.same = true
		return out
	}
	pod := h.pod
	what := fmt.Sprintf("disk of pod %s/%s (%s)", pod.Namespace, pod.Name, pod.UID)
	use, err := patience.Ask(ctx, &m.calls, what, grace, func() (storage, error) {
		mine, cancel := context.WithTimeout(ctx, h.turn)
		defer cancel()
		return measure(mine, m.cfg.Usage, pod)
	})
	if out.part = use.part; out.part && h.turn < longest {
		err = nil // it has more time next
	}
	for _, dir := range use.layers {
		if _, ok := h.free[dir]; !ok {
			h.free[dir] = unix.Statfs_t{} // it is looked at from now on
		}
	}
	out.levels, out.err, out.took = use.levels(pod), err, time.Since(out.began)
	return out
}

// written says whether there is more or less free than at the last count, anywhere that the pod writes to. Of a file
// system that does not answer nobody knows; that is no reason not to count what is elsewhere.
func (h *held) written(ctx context.Context, m *Meter) bool {
	changed := false
	for dir, before := range h.free {
		now, err := m.free(ctx, dir)
		switch {
		case errors.Is(err, patience.ErrNoAnswer):
			changed = true
		case err != nil: // nothing was written there yet
		default:
			changed = changed || now.Bfree != before.Bfree || now.Ffree != before.Ffree
			h.free[dir] = now
		}
	}
	return changed
}

// take takes note of a count, and says when the next is.
func (h *held) take(c counted, log *slog.Logger) {
	h.complain(c.err, log)
	switch {
	case c.same:
		last := h.history[len(h.history)-1]
		last.Time = c.began
		h.remember(last)
	case len(c.levels) > 0:
		h.known = c.err == nil && !c.part
		h.judge(c)
	case !c.part:
		h.known, h.excess = false, nil
	}
	if h.later(c) {
		return
	}
	next := slow
	if len(h.history) > 0 {
		next = sensor.DiskPace(h.history, []int64{0})
	}
	// The calm comes back by and by, and counting is not all that the node does.
	h.last = min(max(next, 0), 2*h.last, slow)
	h.last = min(max(h.last, share*c.took), slow)
	h.next, h.rested = c.began.Add(c.took+h.last), c.began.Add(c.took+share*c.took)
}

// later has a pod be counted for longer that had too little time, after those that wait already; a pod that is above a
// limit by what could be counted is known well enough.
func (h *held) later(c counted) bool {
	switch {
	case c.same:
	case !c.part && c.took <= first:
		h.turn = first
	case c.part && h.turn < longest:
		h.turn = min(2*h.turn, longest)
		h.next, h.rested = c.began.Add(c.took), c.began.Add(c.took)
		return h.excess == nil
	}
	return false
}

// judge finds the limit that is the nearest, and the first that is exceeded. By a part of what a pod has nobody knows
// that it is not above one any more, nor how near it is.
func (h *held) judge(c counted) {
	nearest := &c.levels[0]
	var excess *Excess
	for i := range c.levels {
		l := &c.levels[i]
		if l.left() < nearest.left() {
			nearest = l
		}
		if l.left() < 0 && excess == nil {
			excess = &Excess{
				UID: h.pod.UID, Namespace: h.pod.Namespace, Name: h.pod.Name, Signal: l.of, Of: l.what, Used: l.used,
				Limit: l.limit, Message: l.message, Time: c.began,
			}
		}
	}
	if excess != nil || !c.part {
		h.excess = excess
		h.remember(signal.Reading{Available: nearest.left(), Capacity: nearest.limit, Time: c.began})
	}
}

func (h *held) remember(r signal.Reading) {
	h.history = append(h.history, r)
	h.history = h.history[max(0, len(h.history)-keptReadings):]
}

// complain tells of what cannot be counted, once for each reason.
func (h *held) complain(err error, log *slog.Logger) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != h.failed {
		log.Warn("what the pod has on the disk is not compared with its limit",
			"pod", h.pod.Namespace+"/"+h.pod.Name, "uid", string(h.pod.UID), "error", err)
	}
	h.failed = text
}

func byUID(a, b Excess) int { return cmp.Compare(a.UID, b.UID) }
