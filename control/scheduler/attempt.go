package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/metrics"
	"github.com/berth-node/berth/control/scheduler/plugin/gangscheduling"
	"github.com/berth-node/berth/control/scheduler/profile"
	"github.com/berth-node/berth/control/scheduler/queue"
)

// try is one attempt to schedule a pod.
type try struct {
	profile *profile.Profile
	queued  *queue.Pod
	state   *cycle.State
	// pod is the pod with its node, once there is one.
	pod   *corev1.Pod
	node  string
	began time.Time
	// bound is true when nothing can be given up any more.
	bound bool
}

// attempt finds a node for a pod and has it bound, beside the attempts that follow.
func (s *Scheduler) attempt(ctx context.Context, q *queue.Pod) {
	pod := q.Pod()
	p := s.profiles[pod.Spec.SchedulerName]
	if p == nil || pod.DeletionTimestamp != nil || s.cache.Pod(pod.UID) != nil {
		s.shared.Nominator.DeleteNominatedPodIfExists(pod)
		s.queue.Finish(pod.UID)
		return
	}
	if group := s.groups.Gang(pod); group != nil && p.Has(gangscheduling.Name) {
		gangs{s}.schedule(ctx, group, q)
		return
	}
	t := &try{profile: p, queued: q, state: cycle.NewState(), pod: pod, began: time.Now()}
	defer rescue(ctx, s, t)
	within, cancel := s.search.limited(ctx, 1)
	node, rejection, err := s.choose(within, p, t.state, pod)
	cancel()
	switch {
	case err != nil:
		s.failed(ctx, t, err)
		return
	case rejection != nil:
		s.rejected(ctx, t, rejection)
		return
	}
	bound := *pod
	bound.Spec.NodeName = node
	t.pod, t.node = &bound, node
	if err := s.cache.Assume(q.Info().WithPod(t.pod)); err != nil {
		s.failed(ctx, t, err)
		return
	}
	s.shared.Nominator.DeleteNominatedPodIfExists(pod)
	if status := p.RunReservePluginsReserve(ctx, t.state, t.pod, node); !status.IsSuccess() {
		s.undo(ctx, t, status)
		return
	}
	if status := p.RunPermit(ctx, t.state, t.pod, node); !status.IsSuccess() && !status.IsWait() {
		s.undo(ctx, t, status)
		return
	}
	s.binding.Go(func() { s.bind(ctx, t) })
}

// bind does what remains when a pod has its node. What has begun is brought to its end when the scheduler is to stop.
func (s *Scheduler) bind(ctx context.Context, t *try) {
	defer rescue(ctx, s, t)
	p, uid := t.profile, t.pod.UID
	status := p.RunPreBindPreFlight(ctx, t.state, t.pod, t.node)
	if !status.IsSuccess() && !status.IsSkip() {
		s.undo(ctx, t, status)
		return
	}
	// What binding waits for may take minutes. Who scales nodes is told where the pod is to be, and so is the scheduler
	// that follows this one.
	if status.IsSuccess() || s.shared.Waiting.Has(uid) {
		nominate(ctx, s, t)
	}
	if status := p.WaitOnPermit(ctx, t.pod); !status.IsSuccess() {
		s.undo(ctx, t, status)
		return
	}
	// From here on no plugin rejects the pod: what happens meanwhile does not matter to it.
	s.queue.Done(uid)
	if status.IsSuccess() {
		status = s.preBind(ctx, t)
	} else if status.IsSkip() {
		status = nil
	}
	if status.IsSuccess() {
		status = s.write(ctx, t)
	}
	if !status.IsSuccess() {
		s.undo(ctx, t, status)
		return
	}
	t.bound = true
	s.queue.Finish(uid)
	s.metrics.Attempt(metrics.Scheduled, p.Name(), time.Since(t.began))
	if first := t.queued.GetInitialAttemptTimestamp(); first != nil {
		s.metrics.Bound(t.queued.GetAttempts(), time.Since(*first))
	}
	t.profile.Handle().EventRecorder().Eventf(t.pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "Successfully assigned %s/%s to %s", t.pod.Namespace, t.pod.Name, t.node)
	p.RunPostBind(ctx, t.state, t.pod, t.node)
}

// nominate tells of the node that was found for a pod, before it is bound to it. A pod is bound without that, too.
func nominate(ctx context.Context, s *Scheduler, t *try) {
	if t.pod.Status.NominatedNodeName == t.node {
		return
	}
	if err := s.writer.nominate(ctx, t.pod, t.node); err != nil && ctx.Err() == nil {
		s.log.Warn("nobody is told of the node of a pod that is not bound yet", "pod", klog.KObj(t.pod), "node", t.node, "error", err)
	}
}

// preBind has plugins do what they do before a pod is bound, which others may stop.
func (s *Scheduler) preBind(ctx context.Context, t *try) *fwk.Status {
	h := t.profile.Handle()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h.AddPodInPreBind(t.pod.UID, cancel)
	defer h.RemovePodInPreBind(t.pod.UID)
	if status := t.profile.RunPreBind(ctx, t.state, t.pod, t.node); !status.IsSuccess() {
		return status
	}
	if b := h.GetPodInPreBind(t.pod.UID); b != nil && !b.MarkPrebound() {
		return fwk.AsStatus(fmt.Errorf("prepare binding: %w", context.Cause(ctx)))
	}
	return nil
}

// write binds a pod: by an extender that wants to, or by a plugin when it is the pod's turn, unless ctx ends before.
func (s *Scheduler) write(ctx context.Context, t *try) *fwk.Status {
	for _, e := range s.shared.Extenders {
		if !e.IsBinder() || !e.IsInterested(t.pod) {
			continue
		}
		err := e.Bind(&corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: t.pod.Namespace, Name: t.pod.Name, UID: t.pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: t.node},
		})
		if err != nil && e.IsIgnorable() {
			s.log.Warn("extender does not bind", "extender", e.Name(), "pod", klog.KObj(t.pod), "error", err)
			continue
		}
		return fwk.AsStatus(err)
	}
	done, err := s.writes.Take(ctx, t.pod.Namespace)
	if err != nil {
		return fwk.AsStatus(err)
	}
	defer done()
	return t.profile.RunBind(context.WithoutCancel(ctx), t.state, t.pod, t.node)
}

// undo gives up a node that was found for a pod.
func (s *Scheduler) undo(ctx context.Context, t *try, status *fwk.Status) {
	t.profile.RunReservePluginsUnreserve(ctx, t.state, t.pod, t.node)
	s.cache.Forget(t.pod.UID)
	// Others may have been rejected since this one had taken their room.
	s.queue.Happened(ctx, fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, t.pod, nil)
	if !status.IsRejected() {
		s.failed(ctx, t, reason(status))
		return
	}
	rejection := profile.NewRejection(s.cache.Nodes())
	rejection.Statuses.Set(t.node, status)
	rejection.Blame(status)
	if len(rejection.Unschedulable)+len(rejection.Pending) == 0 {
		s.failed(ctx, t, reason(status))
		return
	}
	s.giveBack(ctx, t, rejection.Unschedulable, rejection.Pending, nil, corev1.PodReasonUnschedulable, rejection.Message())
}

func reason(status *fwk.Status) error {
	if err := status.AsError(); err != nil {
		return err
	}
	return errors.New(status.Code().String())
}

// rejected has room made for a pod that has no node, if a plugin can, and has it wait until something changes.
func (s *Scheduler) rejected(ctx context.Context, t *try, rejection *profile.Rejection) {
	var nominating *fwk.NominatingInfo
	if rejection.Nodes > 0 {
		s.metrics.Preemption()
		within, cancel := s.search.limited(ctx, 1)
		result, status := t.profile.RunPostFilter(within, t.state, t.pod, rejection.Statuses)
		cancel()
		if status.IsError() {
			s.log.Warn("no room is made for a pod", "pod", klog.KObj(t.pod), "error", status.AsError())
		}
		rejection.After = status.Message()
		if result != nil {
			nominating = result.NominatingInfo
		}
		if !status.IsError() && nominating.Mode() == fwk.ModeNoop {
			// Nobody ends for it, and it does not suit as it is: others may have the room until it is attempted again.
			s.shared.Nominator.DeleteNominatedPodIfExists(t.pod)
		}
	}
	if rejection.Nodes == 0 {
		s.nobody(ctx, t)
		return
	}
	s.giveBack(ctx, t, rejection.Unschedulable, rejection.Pending, nominating, corev1.PodReasonUnschedulable, rejection.Message())
}

// failed has a pod wait whose attempt has come to an error, until some time has passed.
func (s *Scheduler) failed(ctx context.Context, t *try, err error) {
	if ctx.Err() != nil {
		s.queue.Finish(t.pod.UID)
		return
	}
	s.log.Warn("pod is not scheduled", "pod", klog.KObj(t.pod), "error", err)
	s.giveBack(ctx, t, nil, nil, nil, corev1.PodReasonSchedulerError, err.Error())
}

// maxMessage bounds what a pod's condition says: each of thousands of nodes may have a reason of its own.
const maxMessage = 16 << 10

// giveBack has a pod wait, and tells why.
func (s *Scheduler) giveBack(
	ctx context.Context, t *try, unschedulable, pending sets.Set[string], nominating *fwk.NominatingInfo, reason, message string,
) {
	message = truncate(message, maxMessage)
	before := t.queued.Pod()
	pod, err := s.pods.Pods(before.Namespace).Get(before.Name)
	if err != nil || pod.UID != before.UID || pod.Spec.NodeName != "" {
		s.queue.Finish(before.UID)
		return
	}
	info, err := cluster.NewPodInfo(pod)
	if err != nil {
		s.log.Warn("affinity of a pod is not read", "pod", klog.KObj(pod), "error", err)
	}
	result := metrics.Unschedulable
	if reason == corev1.PodReasonSchedulerError {
		result = metrics.Error
	}
	s.metrics.Attempt(result, t.profile.Name(), time.Since(t.began))
	t.queued.Reject(unschedulable, pending)
	s.queue.GiveBack(ctx, t.queued, info, nominating)
	t.profile.Handle().EventRecorder().Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", truncate(message, maxNote))
	s.writer.say(pod, reason, message, nominating)
}

// maxNote bounds an event's text, as the API does.
const maxNote = 1024

func truncate(message string, most int) string {
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most-4], "") + " ..."
}
