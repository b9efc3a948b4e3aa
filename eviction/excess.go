package eviction

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/limit"
	"github.com/berth-node/berth/eviction/rank"
)

// limitGrace is what a pod has to end that is above a limit of its own, in seconds, as under kubelet.
const limitGrace = 1

// excesses are the pods that are above a limit of their own. What was counted before a pod has ended says nothing of it
// any more: it may be here again, with the same UID.
type excesses struct {
	over  []limit.Excess
	ended map[types.UID]time.Time
}

func newExcesses() excesses { return excesses{ended: map[types.UID]time.Time{}} }

// take takes note of who is above a limit now.
func (x *excesses) take(l limit.Look) {
	there := map[types.UID]bool{}
	x.over = nil
	for _, e := range l.Over {
		there[e.UID] = true
		if e.Time.After(x.ended[e.UID]) {
			x.over = append(x.over, e)
		}
	}
	for uid, at := range x.ended {
		if !there[uid] && l.Began.After(at) {
			delete(x.ended, uid)
		}
	}
}

// dues are those whose end is due, but for those that could not be ended just now.
func (x *excesses) dues(now time.Time, t *tried, next *earliest) (out []due) {
	for i := range x.over {
		e := &x.over[i]
		if until := t.passed[e.UID].until; until.After(now) {
			next.add(until)
		} else if e.Time.After(x.ended[e.UID]) {
			out = append(out, due{excess: e, crossed: e.Time, reason: e.Of + " is above its limit"})
		}
	}
	return out
}

// note takes note of a flight's end that was about one of these.
func (x *excesses) note(l *landing, t *tried, now time.Time) {
	uid := l.flight.due.excess.UID
	if l.outcome != outcomeEvicted {
		t.passed[uid] = t.passed[uid].longer(now, passedFirst, passedMost)
		return
	}
	x.ended[uid] = now
	delete(t.passed, uid)
}

// left takes note of who went for the sake of the node: what was counted of it is over as well.
func (x *excesses) left(l *landing, now time.Time) {
	uid := l.decision.Pod.UID
	if l.outcome == outcomeEvicted && slices.ContainsFunc(x.over, func(e limit.Excess) bool { return e.UID == uid }) {
		x.ended[uid] = now
	}
}

// evictOver ends the pod that is above its limit: nobody has to be chosen.
func (l *landing) evictOver(ctx context.Context, e *limit.Excess) {
	pod := rank.Pod{UID: e.UID, Namespace: e.Namespace, Name: e.Name}
	l.decision.Pod, l.decision.Ordered = named(&pod), time.Now()
	if l.err = l.end(ctx, &pod); l.err == nil {
		l.outcome = outcomeEvicted
	}
	l.decision.Returned = time.Now()
}
