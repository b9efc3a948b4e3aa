// Package plugin has what the scheduler's own plugins are made of: the objects of events, state between phases,
// arguments, scores.
package plugin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Objects are what an event is about, before and after: nil what was not there yet, or is not there any more.
func Objects[T any](before, after any) (was, is T, err error) {
	if before != nil {
		t, ok := before.(T)
		if !ok {
			return was, is, fmt.Errorf("read event: %T is no %T", before, was)
		}
		was = t
	}
	if after != nil {
		t, ok := after.(T)
		if !ok {
			return was, is, fmt.Errorf("read event: %T is no %T", after, is)
		}
		is = t
	}
	return was, is, nil
}

// WhenNodeSuits queues a pod when a node suits it that is new, or did not before.
func WhenNodeSuits(suits func(*corev1.Pod, *corev1.Node) bool) fwk.QueueingHintFn {
	return func(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
		was, is, err := Objects[*corev1.Node](before, after)
		if err != nil {
			return fwk.Queue, err
		}
		if is == nil || !suits(pod, is) || was != nil && suits(pod, was) {
			return fwk.QueueSkip, nil
		}
		return fwk.Queue, nil
	}
}

// WhenPodChanges queues a pod when it was itself changed in what a plugin looks at.
func WhenPodChanges(changed func(was, is *corev1.Pod) bool) fwk.QueueingHintFn {
	return func(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
		was, is, err := Objects[*corev1.Pod](before, after)
		if err != nil {
			return fwk.Queue, err
		}
		if was == nil || is == nil || is.UID != pod.UID || !changed(was, is) {
			return fwk.QueueSkip, nil
		}
		return fwk.Queue, nil
	}
}

// OnNode registers events of nodes.
func OnNode(action fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	return On(fwk.Node, action, hint)
}

// OnItself registers changes of the pod that waits.
func OnItself(action fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	return On(fwk.TargetPod, action, hint)
}

// OnAssigned registers events of pods that have a node.
func OnAssigned(action fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	return On(fwk.AssignedPod, action, hint)
}

// On registers events of a kind.
func On(resource fwk.EventResource, action fwk.ActionType, hint fwk.QueueingHintFn) fwk.ClusterEventWithHint {
	return fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: resource, ActionType: action}, QueueingHintFn: hint}
}
