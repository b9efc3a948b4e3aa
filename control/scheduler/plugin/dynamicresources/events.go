package dynamicresources

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// EventsToRegister has pods tried again when claims come, change or free devices, and when devices, their classes or
// nodes do.
func (d *dynamicResources) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		plugin.OnNode(fwk.Add|fwk.UpdateNodeLabel|fwk.UpdateNodeAllocatable, nil),
		plugin.OnItself(fwk.UpdatePodGeneratedResourceClaim, d.named),
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceClaim, ActionType: fwk.Add | fwk.Update | fwk.Delete}, QueueingHintFn: d.claimChanged},
		// Whose claims suit a device, or one of a class, is known to who tries.
		{Event: fwk.ClusterEvent{Resource: fwk.ResourceSlice, ActionType: fwk.Add | fwk.Update}},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}},
	}, nil
}

// named queues a pod when the names of all its claims are known.
func (d *dynamicResources) named(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	_, is, err := plugin.Objects[*corev1.Pod](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if is == nil || is.UID != pod.UID {
		return fwk.QueueSkip, nil
	}
	if _, err := d.claimsOf(is); err != nil {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// claimChanged queues a pod when a claim gives devices back, or when its own is there, or has another status.
func (d *dynamicResources) claimChanged(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
	was, is, err := plugin.Objects[*resourcev1.ResourceClaim](before, after)
	if err != nil {
		return fwk.Queue, err
	}
	if was != nil && was.Status.Allocation != nil && (is == nil || is.Status.Allocation == nil || is.UID != was.UID) {
		return fwk.Queue, nil // they may be what the pod waits for
	}
	if is == nil || !uses(pod, is) {
		return fwk.QueueSkip, nil
	}
	if was != nil && was.UID == is.UID && equality.Semantic.DeepEqual(was.Status, is.Status) && was.DeletionTimestamp == is.DeletionTimestamp {
		return fwk.QueueSkip, nil
	}
	if _, err := d.claimsOf(pod); err != nil {
		return fwk.QueueSkip, nil // it waits for another one, too
	}
	return fwk.Queue, nil
}

// uses says whether a pod uses a claim.
func uses(pod *corev1.Pod, c *resourcev1.ResourceClaim) bool {
	if pod.Namespace != c.Namespace {
		return false
	}
	for name := range resourceclaim.PodClaims(pod) {
		if name == c.Name {
			return true
		}
	}
	return false
}
