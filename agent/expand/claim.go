package expand

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// change is what a claim is to say, as a merge patch of what it says now: of one that has changed since, the API server
// takes none.
type change struct {
	Metadata identity `json:"metadata"`
	Status   status   `json:"status"`
}

type identity struct {
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// status leaves out what stays as it is.
type status struct {
	Capacity   map[corev1.ResourceName]resource.Quantity           `json:"capacity,omitempty"`
	Statuses   map[corev1.ResourceName]*corev1.ClaimResourceStatus `json:"allocatedResourceStatuses,omitempty"`
	Conditions *[]corev1.PersistentVolumeClaimCondition            `json:"conditions,omitempty"`
}

func encode(c *corev1.PersistentVolumeClaim, s status) ([]byte, error) {
	return json.Marshal(change{identity{string(c.UID), c.ResourceVersion}, s})
}

func statusOf(c *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// state is one of the node's own states of a claim; nil: none.
func state(s *corev1.ClaimResourceStatus) map[corev1.ResourceName]*corev1.ClaimResourceStatus {
	return map[corev1.ResourceName]*corev1.ClaimResourceStatus{corev1.ResourceStorage: s}
}

// began has a claim say that the node is at it.
func began() status {
	return status{Statuses: state(new(corev1.PersistentVolumeClaimNodeResizeInProgress))}
}

// ended has a claim say that it has what its volume has, and nothing of how that came.
func ended(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) status {
	size := *v.Spec.Capacity.Storage()
	if has := c.Status.Capacity.Storage(); has.Cmp(size) > 0 {
		size = *has
	}
	rest := slices.DeleteFunc(slices.Clone(c.Status.Conditions), func(one corev1.PersistentVolumeClaimCondition) bool {
		switch one.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			return true
		}
		return false
	})
	if rest == nil {
		rest = []corev1.PersistentVolumeClaimCondition{}
	}
	s := status{Capacity: map[corev1.ResourceName]resource.Quantity{corev1.ResourceStorage: size}, Conditions: &rest}
	if statusOf(c) != "" {
		s.Statuses = state(nil)
	}
	return s
}

// failed has a claim say why the driver has not expanded its volume, and whether it is of no use to try again; false:
// it says so already.
func failed(c *corev1.PersistentVolumeClaim, why string, infeasible bool, now metav1.Time) (status, bool) {
	all := slices.Clone(c.Status.Conditions)
	i := slices.IndexFunc(all, func(one corev1.PersistentVolumeClaimCondition) bool {
		return one.Type == corev1.PersistentVolumeClaimNodeResizeError
	})
	says := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: now, Message: why,
	}
	var s status
	if i < 0 {
		all = append(all, says)
		s.Conditions = &all
	} else if all[i].Message != why || all[i].Status != says.Status {
		all[i] = says
		s.Conditions = &all
	}
	if infeasible && statusOf(c) != corev1.PersistentVolumeClaimNodeResizeInfeasible {
		s.Statuses = state(new(corev1.PersistentVolumeClaimNodeResizeInfeasible))
	}
	return s, s.Conditions != nil || s.Statuses != nil
}
