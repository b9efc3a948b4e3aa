package plugin

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Claims yields the volumes of a pod that are claims, with the claims' names: also of those that are made for it.
func Claims(pod *corev1.Pod) iter.Seq2[*corev1.Volume, string] {
	return func(yield func(*corev1.Volume, string) bool) {
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			name := ""
			switch {
			case v.PersistentVolumeClaim != nil:
				name = v.PersistentVolumeClaim.ClaimName
			case v.Ephemeral != nil:
				name = ephemeral.VolumeClaimName(pod, v)
			default:
				continue
			}
			if !yield(v, name) {
				return
			}
		}
	}
}

// WithoutClaims is what a plugin that looks at claims says of what counts of a pod: nothing of one that has none. Where
// one with claims may go depends on the claims, and on who has them.
func WithoutClaims(pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	for range Claims(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with claims are placed one by one")
	}
	return nil, nil
}

// HasClaim says whether a claim is one of a pod's.
func HasClaim(pod *corev1.Pod, namespace, name string) bool {
	if pod.Namespace != namespace {
		return false
	}
	for _, n := range Claims(pod) {
		if n == name {
			return true
		}
	}
	return false
}

// OnClaim registers events of the claims of the pod that waits.
func OnClaim(action fwk.ActionType) fwk.ClusterEventWithHint {
	return On(fwk.PersistentVolumeClaim, action, func(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
		was, is, err := Objects[*corev1.PersistentVolumeClaim](before, after)
		if err != nil {
			return fwk.Queue, err
		}
		for _, claim := range []*corev1.PersistentVolumeClaim{was, is} {
			if claim != nil && HasClaim(pod, claim.Namespace, claim.Name) {
				return fwk.Queue, nil
			}
		}
		return fwk.QueueSkip, nil
	})
}

// OnVolume registers events of volumes. A pod is tried again for one that a claim of its is bound to, and, as nobody
// has to say beforehand which one an open claim gets, for each that is for no other claim.
func OnVolume(action fwk.ActionType, claims func(namespace, name string) (*corev1.PersistentVolumeClaim, error)) fwk.ClusterEventWithHint {
	return On(fwk.PersistentVolume, action, func(_ klog.Logger, pod *corev1.Pod, before, after any) (fwk.QueueingHint, error) {
		_, is, err := Objects[*corev1.PersistentVolume](before, after)
		if err != nil || is == nil {
			return fwk.Queue, err
		}
		if r := is.Spec.ClaimRef; r != nil {
			if HasClaim(pod, r.Namespace, r.Name) {
				return fwk.Queue, nil
			}
			return fwk.QueueSkip, nil
		}
		for _, name := range Claims(pod) {
			claim, err := claims(pod.Namespace, name)
			if err != nil || claim.Spec.VolumeName == is.Name || claim.Spec.VolumeName == "" {
				return fwk.Queue, nil // a claim that is not known yet may be any
			}
		}
		return fwk.QueueSkip, nil
	})
}
