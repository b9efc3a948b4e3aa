package eviction

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

const (
	// A pod that could not be ended is tried again after that, and after twice as long each time.
	passedFirst, passedMost = 10 * time.Second, 5 * time.Minute
	// So is a resource of which no pod that may go has any.
	restFirst, restMost = time.Second, 30 * time.Second
)

// tried is what came of what was done, as far as it matters for what is done next.
type tried struct {
	reclaimed map[signal.Signal]bool          // what nobody needs was the last that went
	rests     map[corev1.ResourceName]backoff // nobody can go
	passed    map[types.UID]backoff           // could not be ended
	given     map[types.UID]bool              // were ended, and may be told of still
}

func newTried() tried {
	return tried{
		reclaimed: map[signal.Signal]bool{}, rests: map[corev1.ResourceName]backoff{},
		passed: map[types.UID]backoff{}, given: map[types.UID]bool{},
	}
}

// pods are those that are not to be tried now, and those that have ended, for a flight to keep.
func (t *tried) pods(now time.Time) (passed, given map[types.UID]bool) {
	passed = map[types.UID]bool{}
	for uid, b := range t.passed {
		passed[uid] = b.until.After(now)
		if now.Sub(b.until) > passedMost { // it went by itself, or does well
			delete(t.passed, uid)
		}
	}
	return passed, maps.Clone(t.given)
}

// eased begins anew with a signal of which there is enough again.
func (t *tried) eased(of signal.Signal) {
	delete(t.reclaimed, of)
	delete(t.rests, of.Resource())
}

// note takes note of a flight's end.
func (t *tried) note(l *landing, now time.Time) {
	f, resource := l.flight, l.flight.resource()
	// As long as there is as much of it as is needed, no pod goes.
	t.reclaimed[f.due.signal()] = f.reclaim && l.decision.Reclaimed < f.due.need()
	t.forget(l.ranked)
	uid := l.decision.Pod.UID
	switch l.outcome {
	case outcomeEvicted:
		t.given[uid] = true
		delete(t.rests, resource)
		delete(t.passed, uid)
	case outcomeReclaimed, outcomeEased:
	case outcomeNobody:
		t.rest(resource, now)
	case outcomeFailed:
		if uid != "" {
			t.passed[uid] = t.passed[uid].longer(now, passedFirst, passedMost)
		} else {
			t.rest(resource, now)
		}
	}
}

func (t *tried) rest(resource corev1.ResourceName, now time.Time) {
	t.rests[resource] = t.rests[resource].longer(now, restFirst, restMost)
}

// forget forgets of pods that are not there any more, or are there anew: static pods return with their UIDs.
func (t *tried) forget(ranked []rank.Pod) {
	if ranked == nil {
		return
	}
	there, ending := map[types.UID]bool{}, map[types.UID]bool{}
	for i := range ranked {
		there[ranked[i].UID], ending[ranked[i].UID] = true, ranked[i].Ending
	}
	for uid := range t.given {
		if !ending[uid] {
			delete(t.given, uid)
		}
	}
	for uid := range t.passed {
		if !there[uid] {
			delete(t.passed, uid)
		}
	}
}

// backoff is how long something is left alone that did not work.
type backoff struct {
	until time.Time
	wait  time.Duration
}

// longer is the next one, twice as long.
func (b backoff) longer(now time.Time, first, most time.Duration) backoff {
	wait := min(max(2*b.wait, first), most)
	return backoff{now.Add(wait), wait}
}
