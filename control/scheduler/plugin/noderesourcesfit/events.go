package noderesourcesfit

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/plugin"
	"github.com/berth-node/berth/control/scheduler/plugin/resources"
)

// EventsToRegister has pods tried again when there is more of what they ask for, or they ask for less.
func (f *fit) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnAssigned(fwk.Delete|fwk.UpdatePodScaleDown, f.afterPod),
		plugin.OnItself(fwk.UpdatePodScaleDown, plugin.WhenPodChanges(func(_, _ *corev1.Pod) bool { return true })),
		plugin.OnNode(fwk.Add|fwk.UpdateNodeAllocatable, f.afterNode),
		{
			Event:          fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update},
			QueueingHintFn: afterClass,
		},
	}, nil
}

// afterPod queues a pod when another leaves its node, or has less there of what it asks for.
func (f *fit) afterPod(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	switch {
	case was == nil:
		return fwk.QueueSkip, nil
	case is == nil:
		// Whatever it had, one pod less is what "Too many pods" waits for. A nominated one had its place kept.
		if was.Spec.NodeName == "" && was.Status.NominatedNodeName == "" {
			return fwk.QueueSkip, nil
		}
		return fwk.Queue, nil
	case is.UID != pod.UID && is.Spec.NodeName == "":
		return fwk.QueueSkip, nil
	case is.UID == pod.UID:
		return fwk.Queue, nil
	}
	had, has := cluster.Requests(was), cluster.Requests(is)
	for _, n := range f.needs(pod) {
		if resources.Amount(has, n.name) < resources.Amount(had, n.name) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// afterNode queues a pod when an empty node as this is would take it, and has more of something than it had.
func (f *fit) afterNode(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*corev1.Node](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is == nil {
		return fwk.QueueSkip, nil
	}
	wants := f.needs(pod)
	allowed := resources.Amount(is.Status.Allocatable, corev1.ResourcePods)
	if allowed < 1 {
		return fwk.QueueSkip, nil
	}
	more := was == nil || allowed > resources.Amount(was.Status.Allocatable, corev1.ResourcePods)
	for _, n := range wants {
		all := resources.Amount(is.Status.Allocatable, n.name)
		if n.device && all == 0 {
			continue
		}
		if n.amount > all {
			return fwk.QueueSkip, nil
		}
		more = more || all > resources.Amount(was.Status.Allocatable, n.name)
	}
	if !more {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// afterClass queues a pod when a class of devices comes to stand for a resource that it asks for.
func afterClass(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*resourcev1.DeviceClass](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is == nil {
		return fwk.QueueSkip, nil
	}
	wants := cluster.Requests(pod)
	asks := func(name string) bool { return resources.Amount(wants, corev1.ResourceName(name)) > 0 }
	if was == nil && asks(resourcev1.ResourceDeviceClassPrefix+is.Name) {
		return fwk.Queue, nil
	}
	now := is.Spec.ExtendedResourceName
	if now == nil || was != nil && was.Spec.ExtendedResourceName != nil && *was.Spec.ExtendedResourceName == *now || !asks(*now) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}
