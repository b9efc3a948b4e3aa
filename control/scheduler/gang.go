package scheduler

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/gangscheduling"
	"github.com/berth-node/berth/control/scheduler/profile"
	"github.com/berth-node/berth/control/scheduler/queue"
)

// gangs finds nodes for the pods of a group together.
type gangs struct{ s *Scheduler }

// rejectedTry is a pod of a gang that no node was found for.
type rejectedTry struct {
	try       *try
	rejection *profile.Rejection
	err       error
}

// schedule finds nodes for all pods of a group that wait, in one go: nobody else is given one in between. Where fewer
// than the group wants get one, all of them are given up before any is bound, so that two groups never hold one half
// each of what either needs.
func (g gangs) schedule(ctx context.Context, group *schedulingv1beta1.PodGroup, first *queue.Pod) {
	s := g.s
	key := cache.MetaObjectToName(group)
	all := append([]*queue.Pod{first}, s.queue.Take(ctx, g.unscheduled(key, first))...)
	var placed []*try
	var failed []rejectedTry
	within, cancel := s.search.limited(ctx, aGang)
	defer cancel()
	wants, has := int(group.Spec.SchedulingPolicy.Gang.MinCount), g.scheduled(key)
	for i, q := range all {
		if has+len(placed)+len(all)-i < wants {
			failed = append(failed, g.pointless(all[i:])...)
			break
		}
		t, bad := g.place(ctx, within, q)
		if t != nil {
			placed = append(placed, t)
		}
		if bad != nil {
			failed = append(failed, *bad)
		}
	}
	if g.scheduled(key) >= wants && len(placed) > 0 {
		for _, t := range placed {
			s.binding.Go(func() { s.bind(ctx, t) })
		}
		for i := range failed {
			g.refuse(ctx, &failed[i], nil)
		}
		return
	}
	message := fmt.Sprintf("%d of %d pods of the gang can be placed, and %d are wanted at least", len(placed), len(all), wants)
	for _, t := range placed {
		g.release(ctx, t)
	}
	room := g.makeRoom(ctx, group, all, wants-g.scheduled(key))
	for _, t := range placed {
		rejection := profile.NewRejection(s.cache.Nodes())
		rejection.Before, rejection.After = message, room.message
		rejection.Unschedulable.Insert(gangscheduling.Name)
		s.giveBack(ctx, t, rejection.Unschedulable, nil, room.of(t.queued.Pod()), corev1.PodReasonUnschedulable, rejection.Message())
	}
	for i := range failed {
		g.refuse(ctx, &failed[i], room)
	}
	s.groupWriter.say(group, false, message)
}

// scheduled is how many pods of a group have a node, or are just getting one.
func (g gangs) scheduled(key cache.ObjectName) int {
	state, err := g.s.groups.PodGroupStates().Get(key.Namespace, key.Name)
	if err != nil {
		return 0
	}
	return state.ScheduledPodsCount()
}

// reached tells of a group that has all the nodes it wants, by what the API says of its pods: whoever has bound them,
// and whatever has ended in between.
func (g gangs) reached(key cache.ObjectName) {
	s := g.s
	group, err := s.groups.PodGroups().Get(key.Namespace, key.Name)
	if err != nil || group.Spec.SchedulingPolicy.Gang == nil || meta.IsStatusConditionTrue(group.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled) {
		return
	}
	if s.groups.Bound(key) >= int(group.Spec.SchedulingPolicy.Gang.MinCount) {
		s.groupWriter.say(group, true, "")
	}
}

// unscheduled are the pods of a group that have no node, but one, of the same scheduler.
func (g gangs) unscheduled(key cache.ObjectName, but *queue.Pod) []*corev1.Pod {
	s := g.s
	state, err := s.groups.PodGroupStates().Get(key.Namespace, key.Name)
	if err != nil {
		return nil
	}
	var all []*corev1.Pod
	for _, pod := range state.UnscheduledPods() {
		if pod.UID != but.Pod().UID && pod.Spec.SchedulerName == but.Pod().Spec.SchedulerName {
			all = append(all, pod)
		}
	}
	return all
}

// place gives a pod of a gang a node that nobody knows of yet, which is looked for as long as look is not over.
// Neither: it does not wait any more.
func (g gangs) place(ctx, look context.Context, q *queue.Pod) (placed *try, bad *rejectedTry) {
	s := g.s
	pod := q.Pod()
	p := s.profiles[pod.Spec.SchedulerName]
	if p == nil || pod.DeletionTimestamp != nil || s.cache.Pod(pod.UID) != nil {
		s.queue.Finish(pod.UID)
		return nil, nil
	}
	t := &try{profile: p, queued: q, state: cycle.NewState(), pod: pod, began: time.Now()}
	defer func() {
		if p := recover(); p != nil { // the others of the gang have nodes already, which are given up in order
			s.log.Error("attempt to schedule a pod panics", "pod", klog.KObj(pod), "uid", pod.UID, "error", p, "stack", string(debug.Stack()))
			s.shared.Waiting.Drop(pod.UID)
			s.cache.Forget(pod.UID)
			placed, bad = nil, &rejectedTry{t, nil, fmt.Errorf("panic: %v", p)}
		}
	}()
	within, cancel := s.search.limited(look, 1)
	defer cancel()
	node, rejection, err := s.choose(within, p, t.state, pod)
	if err != nil || rejection != nil {
		return nil, &rejectedTry{t, rejection, err}
	}
	bound := *pod
	bound.Spec.NodeName = node
	t.pod, t.node = &bound, node
	if err := s.cache.Assume(q.Info().WithPod(t.pod)); err != nil {
		return nil, &rejectedTry{t, nil, err}
	}
	s.shared.Nominator.DeleteNominatedPodIfExists(pod)
	status := p.RunReservePluginsReserve(ctx, t.state, t.pod, node)
	if status.IsSuccess() {
		status = p.RunPermit(ctx, t.state, t.pod, node)
	}
	if status.IsSuccess() || status.IsWait() {
		return t, nil
	}
	g.release(ctx, t)
	if !status.IsRejected() {
		return nil, &rejectedTry{t, nil, reason(status)}
	}
	rejection = profile.NewRejection(s.cache.Nodes())
	rejection.Statuses.Set(node, status)
	rejection.Blame(status)
	return nil, &rejectedTry{t, rejection, nil}
}

// pointless are pods of a gang for which no node is looked for: so many of the others have none that these are not
// enough.
func (g gangs) pointless(rest []*queue.Pod) []rejectedTry {
	var all []rejectedTry
	for _, q := range rest {
		pod := q.Pod()
		rejection := profile.NewRejection(g.s.cache.Nodes())
		rejection.Before = "the other pods of the gang cannot be placed"
		rejection.Unschedulable.Insert(gangscheduling.Name)
		all = append(all, rejectedTry{&try{profile: g.s.profiles[pod.Spec.SchedulerName], queued: q, pod: pod, began: time.Now()}, rejection, nil})
	}
	return all
}

// release gives up a node that was found for a pod of a gang, which waits for a permit perhaps.
func (g gangs) release(ctx context.Context, t *try) {
	s := g.s
	s.shared.Waiting.Drop(t.pod.UID)
	t.profile.RunReservePluginsUnreserve(ctx, t.state, t.pod, t.node)
	s.cache.Forget(t.pod.UID)
}

// refuse has a pod of a gang wait. No room is made for it alone: victims would have died for a gang that still does
// not fit.
func (g gangs) refuse(ctx context.Context, r *rejectedTry, made *room) {
	s := g.s
	switch {
	case r.err != nil:
		s.failed(ctx, r.try, r.err)
	case r.rejection.Nodes == 0:
		s.nobody(ctx, r.try)
	default:
		var nominating *fwk.NominatingInfo
		if made != nil {
			nominating, r.rejection.After = made.of(r.try.queued.Pod()), made.message
		}
		s.giveBack(ctx, r.try, r.rejection.Unschedulable, r.rejection.Pending, nominating, corev1.PodReasonUnschedulable, r.rejection.Message())
	}
}
