package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

// landingSlack is how long after its deadline a call may take to come back.
const landingSlack = 5 * time.Second

// errHard ends a soft eviction's wait: there is no more time for it.
var errHard = errors.New("a hard threshold is met")

// flightOf is what a flight is about: a resource of which the node has too little, or a pod that has too much of it.
type flightOf struct {
	resource corev1.ResourceName
	over     types.UID // "": nobody
}

// flight is one thing that is being done about a resource: what nobody needs is removed, or one pod ends. For the sake
// of the node there is at most one for a resource, so that what it gives back is seen before the next is decided; who
// is above a limit of its own has one of its own.
type flight struct {
	due     due
	reclaim bool
	passed  map[types.UID]bool // not to be tried now
	given   map[types.UID]bool // have ended
	count   time.Duration      // for how long files may be counted
	clear   time.Duration      // for how long what nobody needs may be removed

	node   Node
	quick  func() (signal.Readings, error)
	policy *threshold.Policy
	cancel context.CancelCauseFunc
	hard   *due // why there is no more time; set before the flight is told
}

// resource is what the flight is about.
func (f *flight) resource() corev1.ResourceName { return f.due.signal().Resource() }

func (f *flight) of() flightOf {
	if e := f.due.excess; e != nil {
		return flightOf{f.resource(), e.UID}
	}
	return flightOf{resource: f.resource()}
}

// soft says whether the pod has time to end still.
func (f *flight) soft() bool { return f.due.soft() && f.hard == nil }

// harden leaves the pod no more time.
func (f *flight) harden(d due) {
	f.hard = &d
	f.cancel(errHard)
}

// outcome is what came of a flight.
type outcome int

const (
	outcomeFailed    outcome = iota
	outcomeReclaimed         // what nobody needs was removed, whatever that was
	outcomeNobody            // no pod may go that has anything of the resource
	outcomeEased             // there is enough again, before anybody was told to go
	outcomeEvicted
)

// landing is the end of a flight.
type landing struct {
	flight   *flight
	outcome  outcome
	decision Decision
	err      error
	ranked   []rank.Pod // nil: nobody asked
}

// fly does what the flight is for, and returns what came of it.
func (f *flight) fly(ctx context.Context, now time.Time) landing {
	l := landing{flight: f, decision: newDecision(&f.due, now)}
	switch {
	case f.due.excess != nil:
		l.evictOver(ctx, f.due.excess)
	case f.reclaim:
		l.reclaim(ctx)
	default:
		l.evict(ctx)
	}
	return l
}

// reclaim removes what nobody needs.
func (l *landing) reclaim(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.flight.clear)
	defer cancel()
	l.outcome = outcomeReclaimed
	l.decision.Reclaimed, l.err = within(ctx, func() (int64, error) {
		return l.flight.node.Reclaim(ctx, l.flight.due.signal(), l.flight.due.need())
	})
	l.decision.Returned = time.Now()
}

// evict ends the pod that is the first in the order.
func (l *landing) evict(ctx context.Context) {
	f := l.flight
	of := f.due.signal()
	pods, err := f.ranked(ctx, of)
	if err != nil {
		l.err = fmt.Errorf("rank pods for %s: %w", of, err)
		return
	}
	l.ranked = pods
	defer func() { l.decision.rank(pods, of) }() // nobody waits for that
	pod := f.choose(pods)
	if pod == nil {
		l.outcome = outcomeNobody
		return
	}
	if !pod.Ending && f.eased() {
		l.outcome = outcomeEased
		return
	}
	l.decision.Pod, l.decision.Finished = named(pod), pod.Ending
	l.decision.Ordered = time.Now()
	if l.err = l.end(ctx, pod); l.err == nil {
		l.outcome = outcomeEvicted
	}
	l.decision.Returned = time.Now()
}

// eased says whether there is enough again of what can be read without waiting. To ask who has what takes a while on a
// busy machine, and who had the most may have ended in it, by himself or by the kernel: then the next one is no worse
// than anybody.
func (f *flight) eased() bool {
	if f.due.watched == nil {
		return false
	}
	readings, _ := f.quick()
	r, known := readings[f.due.signal()]
	return known && r.Available >= f.due.watched.Enough(r.Capacity)
}

// ranked asks for the pods, also when the flight was told to hurry: that is no reason to know nobody.
func (f *flight) ranked(ctx context.Context, of signal.Signal) ([]rank.Pod, error) {
	most := rankPatience
	if of.Condition() == corev1.NodeDiskPressure {
		most = f.count
	}
	ctx, cancel := patience(ctx, most)
	defer cancel()
	return within(ctx, func() ([]rank.Pod, error) { return f.node.Ranked(ctx, of) })
}

// end ends a pod: with what time it has, and when that is called off, at once.
func (l *landing) end(ctx context.Context, pod *rank.Pod) error {
	f := l.flight
	if f.due.soft() && context.Cause(ctx) == nil {
		order := f.due.order(pod, f.due.grace(pod, f.policy))
		l.decision.Message, l.decision.GraceSeconds = order.Message, order.GraceSeconds
		soft, cancel := context.WithTimeout(ctx, time.Duration(order.GraceSeconds)*time.Second+evictPatience)
		err := f.order(soft, pod, order)
		cancel()
		if err == nil || !errors.Is(context.Cause(ctx), errHard) {
			return err
		}
	}
	d := &f.due
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errHard):
		d = f.hard
		l.decision.Hardened = time.Now()
	case cause != nil:
		return cause
	}
	order := d.order(pod, 0)
	if f.due.excess != nil { // that is why it goes, but what it has goes with it for the sake of the node
		order.Message = f.due.excess.Message
	}
	l.decision.Message, l.decision.GraceSeconds = order.Message, 0
	hard, cancel := patience(ctx, evictPatience)
	defer cancel()
	return f.order(hard, pod, order)
}

func (f *flight) order(ctx context.Context, pod *rank.Pod, o Order) error {
	_, err := within(ctx, func() (struct{}, error) { return struct{}{}, f.node.Evict(ctx, pod.UID, o) })
	return err
}

// within waits for a call until its context has ended, and a little longer: what hangs in the kernel does not hear of
// contexts, and is left to itself.
func within[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := call()
		answers <- answer{value, err}
	}()
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(landingSlack, func() { close(late) }) })
	defer stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-late:
		var none T
		return none, fmt.Errorf("%w, and it did not come back", context.Cause(ctx))
	}
}

// patience is a context for that long, which a flight's hardening does not end; the manager's end does.
func patience(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errHard) {
			cancel()
		}
	})
	return out, func() {
		stop()
		cancel()
	}
}

// choose returns the pod that goes: first one that ends already, so that nobody else goes beside it; nil when nobody
// may.
func (f *flight) choose(pods []rank.Pod) *rank.Pod {
	order := rank.Order(pods, f.due.signal())
	order = slices.DeleteFunc(order, func(p rank.Pod) bool {
		return f.passed[p.UID] || p.Ending && f.given[p.UID] || !p.Ending && p.Useless()
	})
	if at := slices.IndexFunc(order, func(p rank.Pod) bool { return p.Ending }); at >= 0 {
		return &order[at]
	}
	if f.due.watched == nil {
		return rank.Stalled(order)
	}
	if len(order) == 0 {
		return nil
	}
	return &order[0]
}
