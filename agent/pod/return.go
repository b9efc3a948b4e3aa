package pod

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/plan"
)

// doneEviction is why and when a pod came to its end that is still wanted.
type doneEviction struct {
	*Eviction
	at    time.Time
	alarm bool // it is known when it may run again; the manager's
}

// evictionBackoff is how often a pod was evicted that was let run again.
type evictionBackoff struct {
	uid   types.UID
	count int
	since time.Time // it runs again
}

// retryHeld asks again for those that the node had something against and for those that it has ended, the most
// important first: whoever is asked for later sees what those before have got, or will get. Each pod that comes or goes
// asks for it, so that it does not go through all pods.
func (m *Manager) retryHeld(ctx context.Context) {
	waiting := map[types.NamespacedName]int32{}
	for key := range m.held {
		waiting[key] = m.admitter.priorityOf(key)
	}
	for _, w := range m.node.registry.evicted() {
		if !w.managed.leaving {
			key := keyOf(w.share.Pod)
			waiting[key] = m.admitter.priorityOf(key)
		}
	}
	if len(waiting) == 0 {
		return
	}
	m.node.tally.refresh()
	m.admitter.held = map[*worker]bool{}
	defer func() { m.admitter.held = nil }()
	for _, key := range slices.SortedFunc(maps.Keys(waiting), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(waiting[b], waiting[a]), cmp.Compare(a.String(), b.String()))
	}) {
		m.reconcile(ctx, key)
	}
}

func (a *admitter) priorityOf(key types.NamespacedName) int32 {
	if pod := a.manager.desired[key].pod; pod != nil {
		return admission.Priority(classed(pod, a.node.objects(pod)))
	}
	return 0
}

// returns says whether a pod that the node has ended is to run again, which it does as a pod that was never here. One
// whose containers are not to be restarted has had its run.
func (a *admitter) returns(w *worker, want wanted, key types.NamespacedName) bool {
	pod, l := want.pod, w.told.evictionDone.Load()
	if l == nil || !want.rules.Returns || pod.Spec.RestartPolicy == corev1.RestartPolicyNever ||
		!a.node.registry.synced.Load() {
		return false
	}
	switch l.Return {
	case ReturnAdmitted:
	case ReturnOpened:
		if !a.manager.opened.Load() {
			return false
		}
	case ReturnDelayed:
		if slices.Contains(a.node.cfg.Node.Short.Holding(), l.Condition) || !a.delayOver(key, w.uid, l) {
			return false
		}
	default:
		return false
	}
	if a.judge(pod, false) != nil {
		return false
	}
	if l.Return == ReturnDelayed {
		a.backoffs[key] = evictionBackoff{w.uid, a.backoffs[key].count + 1, time.Now()}
	}
	a.manager.log.Info("a pod that was ended runs again", "pod", key.String(), "uid", string(w.uid), "reason", l.Reason)
	a.node.event(pod, corev1.EventTypeNormal, "Returning", "Pod that was ended (%s) runs again", l.Reason)
	return true
}

// delayOver says whether a pod that was evicted has waited for as long as a container would that has failed as often.
func (a *admitter) delayOver(key types.NamespacedName, uid types.UID, l *doneEviction) bool {
	before := a.backoffs[key]
	if before.uid != uid || l.at.Sub(before.since) > a.node.cfg.Backoff.Reset {
		before = evictionBackoff{uid: uid}
		a.backoffs[key] = before
	}
	rest := time.Until(l.at.Add(plan.Backoff(a.node.cfg.Backoff.Initial, a.node.cfg.Backoff.Max, before.count+1)))
	if rest > 0 && !l.alarm {
		l.alarm = true
		time.AfterFunc(rest, a.node.askAgain)
	}
	return rest <= 0
}

// others are the workers of other names that are as asked for. A pod's own go before it comes.
func (a *admitter) others(key types.NamespacedName, like func(*worker) bool) []*worker {
	var out []*worker
	for other, workers := range a.manager.workers.live {
		if other == key {
			continue
		}
		for _, w := range workers {
			if like(w) {
				out = append(out, w)
			}
		}
	}
	return out
}

// holds says whether a pod has something of the node but resources, such as ports: until that was given back.
func (a *admitter) holds(w *worker) bool {
	return once(a.held, w, func() bool { return !w.told.over.Load() })
}

// uses says whether a pod uses resources: it is here, and has not come to its end.
func (a *admitter) uses(w *worker) bool { return a.node.tally.of[w] }

// once is the first answer about a worker; with a nil map the latest.
func once(first map[*worker]bool, w *worker, ask func() bool) bool {
	known, ok := first[w]
	if !ok {
		known = ask()
		if first != nil {
			first[w] = known
		}
	}
	return known
}

// promised are the pods that get resources before this one does: those for which others end, and those that have ended
// and run again. Who is more important than they are takes it nevertheless.
func (a *admitter) promised(r *admission.Request) []*admission.Share {
	var out []*admission.Share
	key, own := r.Key(), admission.Priority(r.Pod)
	for other, p := range a.next {
		if other != key && admission.Priority(p) >= own {
			out = append(out, admission.ShareOf(p))
		}
	}
	for _, w := range a.node.registry.evicted() {
		other := keyOf(w.share.Pod)
		again := a.manager.desired[other].pod
		if other != key && w.managed.leaving && again != nil && again.UID == w.uid && admission.Priority(w.share.Pod) >= own {
			out = append(out, w.share)
		}
	}
	return out
}

func sharesOf(workers []*worker) []*admission.Share {
	var out []*admission.Share
	for _, w := range workers {
		out = append(out, w.share)
	}
	return out
}
