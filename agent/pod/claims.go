package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// claimStatuses are the claims that templates make for a pod.
func claimStatuses(pod *corev1.Pod) []corev1.PodResourceClaimStatus {
	if desired.OriginOf(pod).Cluster() { // who has made them has said so
		return pod.Status.ResourceClaimStatuses
	}
	var out []corev1.PodResourceClaimStatus
	for i := range pod.Spec.ResourceClaims {
		if c := &pod.Spec.ResourceClaims[i]; c.ResourceClaimTemplateName != nil {
			name := object.ResourceClaimName(pod, c)
			out = append(out, corev1.PodResourceClaimStatus{Name: c.Name, ResourceClaimName: &name})
		}
	}
	return out
}
