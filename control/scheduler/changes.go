package scheduler

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// nodeChanges are in what of a node that matters to pods two versions differ.
func nodeChanges(was, is *corev1.Node) fwk.ActionType {
	action := fwk.None
	if !sameResources(was.Status.Allocatable, is.Status.Allocatable) {
		action |= fwk.UpdateNodeAllocatable
	}
	if !maps.Equal(was.Labels, is.Labels) {
		action |= fwk.UpdateNodeLabel
	}
	if was.Spec.Unschedulable != is.Spec.Unschedulable || !equality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) {
		action |= fwk.UpdateNodeTaint
	}
	if !slices.EqualFunc(was.Status.Conditions, is.Status.Conditions, func(a, b corev1.NodeCondition) bool {
		return a.Type == b.Type && a.Status == b.Status // not when a node has said so last
	}) {
		action |= fwk.UpdateNodeCondition
	}
	if !maps.Equal(was.Annotations, is.Annotations) {
		action |= fwk.UpdateNodeAnnotation
	}
	if !slices.Equal(was.Status.DeclaredFeatures, is.Status.DeclaredFeatures) {
		action |= fwk.UpdateNodeDeclaredFeature
	}
	return action
}

// podChanges are in what of a pod that matters to where pods may be two versions differ.
func podChanges(was, is *corev1.Pod) fwk.ActionType {
	action := fwk.None
	if !maps.Equal(was.Labels, is.Labels) {
		action |= fwk.UpdatePodLabel
	}
	if len(was.Spec.Tolerations) != len(is.Spec.Tolerations) {
		action |= fwk.UpdatePodToleration
	}
	if len(was.Spec.SchedulingGates) > 0 && len(is.Spec.SchedulingGates) == 0 {
		action |= fwk.UpdatePodSchedulingGatesEliminated
	}
	if !equality.Semantic.DeepEqual(was.Status.ResourceClaimStatuses, is.Status.ResourceClaimStatuses) {
		action |= fwk.UpdatePodGeneratedResourceClaim
	}
	if was.Generation == is.Generation && len(was.Status.ContainerStatuses) == 0 && len(is.Status.ContainerStatuses) == 0 {
		return action // requests are what they were
	}
	before, after := cluster.Requests(was), cluster.Requests(is)
	for name, quantity := range after {
		if had := before[name]; quantity.Cmp(had) > 0 {
			action |= fwk.UpdatePodScaleUp
		}
	}
	for name, had := range before {
		if quantity := after[name]; quantity.Cmp(had) < 0 {
			action |= fwk.UpdatePodScaleDown
		}
	}
	return action
}

func sameResources(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	for name, quantity := range a {
		if other, there := b[name]; !there || quantity.Cmp(other) != 0 {
			return false
		}
	}
	return true
}
