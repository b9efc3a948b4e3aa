// Package gangscheduling has pods of a group with a gang policy get nodes together: as many as the policy wants at
// least, or none.
package gangscheduling

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Name is the plugin's in configurations.
const Name = "GangScheduling"

// timeout is for how long a pod that has a node waits for the others of its group, where these are not placed in the
// same cycle.
const timeout = 5 * time.Minute

type gang struct {
	groups  fwk.PodGroupManager
	waiting waiting
}

// waiting are the pods that have a node and wait for a permit.
type waiting interface {
	IterateOverWaitingPods(callback func(fwk.WaitingPod))
}

// New makes the plugin.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &gang{h.PodGroupManager(), h}, nil
}

// Name is Kubernetes' name of the plugin.
func (*gang) Name() string { return Name }

// wants is how many pods of a pod's group are wanted at least; 0: it needs no others.
func (g *gang) wants(pod *corev1.Pod) (cache.ObjectName, int, *fwk.Status) {
	key, ok := cluster.Group(pod)
	if s, may := g.groups.(interface{ Served() bool }); !ok || may && !s.Served() {
		return key, 0, nil
	}
	group, err := g.groups.PodGroups().Get(key.Namespace, key.Name)
	if err != nil {
		// Whatever its policy may be, it is not known before the group is there.
		return key, 0, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for pod group %q to appear in scheduling queue", key.Name))
	}
	if group.Spec.SchedulingPolicy.Gang == nil {
		return key, 0, nil
	}
	return key, int(group.Spec.SchedulingPolicy.Gang.MinCount), nil
}

// PreEnqueue keeps a pod away until its group, and as many pods of it as are wanted, are there.
func (g *gang) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	key, wanted, status := g.wants(pod)
	if wanted == 0 {
		return status
	}
	state, err := g.groups.PodGroupStates().Get(key.Namespace, key.Name)
	if err == nil && state.AllPodsCount() >= wanted {
		return nil
	}
	have := 0
	if err == nil {
		have = state.AllPodsCount()
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for minCount pods from a gang to appear in scheduling queue: %d of %d", have, wanted))
}

// Reserve has nothing to do: the scheduler has noted the pod's node.
func (*gang) Reserve(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status { return nil }

// Unreserve has the others of the group give up, too, where they wait for this one.
func (g *gang) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	key, wanted, _ := g.wants(pod)
	if wanted == 0 {
		return
	}
	g.waiting.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if other, ok := cluster.Group(w.GetPod()); ok && other == key {
			w.Reject(Name, "another pod of the gang has given up its node")
		}
	})
}

// Permit has a pod wait until so many of its group have a node as are wanted; then all of them may go.
func (g *gang) Permit(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.Status, time.Duration) {
	key, wanted, status := g.wants(pod)
	if wanted == 0 {
		return status, 0
	}
	state, err := g.groups.PodGroupStates().Get(key.Namespace, key.Name)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("count pods of group %s: %w", key, err)), 0
	}
	if state.ScheduledPodsCount() < wanted {
		return fwk.NewStatus(fwk.Wait, "waiting for minCount pods from a gang to be scheduled"), timeout
	}
	g.waiting.IterateOverWaitingPods(func(w fwk.WaitingPod) {
		if other, ok := cluster.Group(w.GetPod()); ok && other == key {
			w.Allow(Name)
		}
	})
	return nil, 0
}

// EventsToRegister has pods attempted again when their group, or one more pod of it, is there.
func (g *gang) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.UnscheduledPod, ActionType: fwk.Add}, QueueingHintFn: ofGroup, PreQueueingHintFn: g.among},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Add}, QueueingHintFn: ofGroup, PreQueueingHintFn: g.among},
		{Event: fwk.ClusterEvent{Resource: fwk.PodGroup, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: isGroup},
	}, nil
}

// among says that nobody waits for a pod that is of no gang, or of one that still is not complete: else the pods of a
// gang that never is would be asked about with each pod of the cluster.
func (g *gang) among(_ klog.Logger, _, after any) (fwk.PreQueueingHintResult, error) {
	pod, ok := after.(*corev1.Pod)
	if !ok {
		return fwk.PreQueueingHintResult{AllPods: true}, nil
	}
	key, wanted, status := g.wants(pod)
	if wanted == 0 || !status.IsSuccess() {
		return fwk.PreQueueingHintResult{}, nil
	}
	state, err := g.groups.PodGroupStates().Get(key.Namespace, key.Name)
	return fwk.PreQueueingHintResult{AllPods: err == nil && state.AllPodsCount() >= wanted}, nil
}

// ofGroup is of pods that come to the group.
func ofGroup(_ klog.Logger, pod *corev1.Pod, _, after any) (fwk.QueueingHint, error) {
	other, ok := after.(*corev1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	mine, _ := cluster.Group(pod)
	if theirs, ok := cluster.Group(other); ok && theirs == mine {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

// isGroup is of the group itself: it is there, or fewer of its pods are wanted.
func isGroup(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	group, ok := after.(*schedulingv1beta1.PodGroup)
	if !ok {
		return fwk.Queue, nil
	}
	if mine, _ := cluster.Group(pod); mine != cache.MetaObjectToName(group) {
		return fwk.QueueSkip, nil
	}
	was, ok := before.(*schedulingv1beta1.PodGroup)
	now := group.Spec.SchedulingPolicy.Gang
	if ok && now != nil && was.Spec.SchedulingPolicy.Gang != nil && now.MinCount >= was.Spec.SchedulingPolicy.Gang.MinCount {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
