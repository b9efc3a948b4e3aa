package queue

import (
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Hint is what a plugin says of an event: whether it may make a pod schedulable that the plugin has rejected.
type Hint struct {
	Plugin string
	Event  fwk.ClusterEvent
	// Worth looks at the event; nil: it is always worth another attempt. Among says beforehand which pods to ask about.
	Worth fwk.QueueingHintFn
	Among fwk.PreQueueingHintFn
}

// Wildcard is the event of which nobody knows what it changes.
func Wildcard(label string) fwk.ClusterEvent {
	return fwk.ClusterEvent{Resource: fwk.WildCard, ActionType: fwk.All, CustomLabel: label}
}

// Matches says whether who has registered for one event wants to hear of another one.
func Matches(registered, event fwk.ClusterEvent) bool {
	if event.Resource == fwk.WildCard || registered.Resource == fwk.WildCard && registered.ActionType&event.ActionType != 0 {
		return true
	}
	if registered.ActionType&event.ActionType == 0 {
		return false
	}
	return registered.Resource == event.Resource || registered.Resource == fwk.Pod && ofPod(event.Resource)
}

func ofPod(r fwk.EventResource) bool {
	return r == fwk.AssignedPod || r == fwk.UnscheduledPod || r == fwk.TargetPod
}

// verdict is what is to be done with a pod that was rejected.
type verdict int

const (
	stay verdict = iota
	retry
	retryNow // since its plugin has waited for just this
)

// asking is for how long plugins are asked what one event is for pods. What they read for it is anybody's, and nobody
// comes to the queue or leaves it meanwhile. Those who are not asked about are attempted once too often.
const asking = 200 * time.Millisecond

// question is an event for which pods are asked about.
type question struct {
	record

	until time.Time                                  // plugins are asked
	among map[hintKey]sets.Set[types.NamespacedName] // only these; nil: all
}

func newQuestion(r record) *question { return &question{record: r, until: time.Now().Add(asking)} }

// hintKey is one hint of those of all profiles.
type hintKey struct {
	profile string
	number  int
}

// ask says what an event is for a pod.
func ask(q *Queue, p *Pod, e *question) verdict {
	if e.event.Resource == fwk.WildCard {
		return retry
	}
	if time.Now().After(e.until) {
		return retry
	}
	pod, best := p.Pod(), stay
	for i, h := range q.hints[pod.Spec.SchedulerName] {
		pending := p.pending.Has(h.Plugin)
		if !pending && !p.unschedulable.Has(h.Plugin) || !Matches(h.Event, e.event) || !worth(q, i, h, pod, e) {
			continue
		}
		if pending {
			return retryNow
		}
		best = retry
	}
	return best
}

// freed says whether an event may be what a pod waits for that is kept away from the queue.
func freed(q *Queue, p *Pod, e *question) bool {
	pod := p.Pod()
	for i, h := range q.hints[pod.Spec.SchedulerName] {
		if h.Plugin == p.gating && Matches(h.Event, e.event) && worth(q, i, h, pod, e) {
			return true
		}
	}
	return false
}

func worth(q *Queue, i int, h Hint, pod *corev1.Pod, e *question) (yes bool) {
	defer func() {
		if p := recover(); p != nil {
			q.log.Error("plugin panics at an event", "plugin", h.Plugin, "event", e.event.Label(), "pod", klog.KObj(pod), "error", p, "stack", string(debug.Stack()))
			yes = true // better once too often than never
		}
	}()
	if h.Among != nil {
		names := among(q, hintKey{pod.Spec.SchedulerName, i}, h, e)
		if names != nil && !names.Has(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}) {
			return false
		}
	}
	if h.Worth == nil {
		return true
	}
	answer, err := h.Worth(klog.Background(), pod, e.before, e.after)
	if err != nil {
		q.log.Warn("plugin cannot tell what an event is for a pod", "plugin", h.Plugin, "event", e.event.Label(), "pod", klog.KObj(pod), "error", err)
		return true // better once too often than never
	}
	return answer == fwk.Queue
}

// among are the pods that a hint is to be asked about, which it tells once for each event; nil: all.
func among(q *Queue, key hintKey, h Hint, e *question) (names sets.Set[types.NamespacedName]) {
	if e.before == nil && e.after == nil {
		return nil
	}
	if known, there := e.among[key]; there {
		return known
	}
	defer func() {
		if p := recover(); p != nil {
			q.log.Error("plugin panics at an event", "plugin", h.Plugin, "event", e.event.Label(), "error", p, "stack", string(debug.Stack()))
			names = nil
		}
		if e.among == nil {
			e.among = map[hintKey]sets.Set[types.NamespacedName]{}
		}
		e.among[key] = names
	}()
	result, err := h.Among(klog.Background(), e.before, e.after)
	if err != nil {
		q.log.Warn("plugin cannot tell which pods an event is for", "plugin", h.Plugin, "event", e.event.Label(), "error", err)
		return nil
	}
	if result.AllPods {
		return nil
	}
	return sets.New(result.Pods...)
}

// wanted says whether any plugin has registered for an event.
func wanted(q *Queue, event fwk.ClusterEvent) bool {
	if event.Resource == fwk.WildCard {
		return true
	}
	key := interest{event.Resource, event.ActionType}
	known, there := q.interests[key]
	if !there {
		for _, hints := range q.hints {
			for _, h := range hints {
				known = known || Matches(h.Event, event)
			}
		}
		q.interests[key] = known
	}
	return known
}

// interest is a kind of event.
type interest struct {
	resource fwk.EventResource
	action   fwk.ActionType
}
