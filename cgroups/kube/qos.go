package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// QoS is the pod's class as the API defines it: Guaranteed when every container has cpu and memory limits equal to its
// requests (or the pod as a whole has), BestEffort when nothing asks for either, Burstable otherwise.
//
// It is computed from the spec, never from status.qosClass, because a static pod has no status before it runs.
func QoS(pod *corev1.Pod) corev1.PodQOSClass {
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return qosOf(pod.Spec.Resources.Requests, pod.Spec.Resources.Limits, true)
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	guaranteed := true
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			sum(requests, r.Requests)
			sum(limits, r.Limits)
			guaranteed = guaranteed && positive(r.Limits, corev1.ResourceCPU) && positive(r.Limits, corev1.ResourceMemory)
		}
	}
	return qosOf(requests, limits, guaranteed)
}

func qosOf(requests, limits corev1.ResourceList, guaranteed bool) corev1.PodQOSClass {
	any, equal := false, true
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		r, l := requests[name], limits[name]
		any = any || r.Sign() > 0 || l.Sign() > 0
		// A limit without a request is defaulted to one of the same size, so an absent request is no difference.
		equal = equal && l.Sign() > 0 && (r.Sign() == 0 || r.Cmp(l) == 0)
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed && equal:
		return corev1.PodQOSGuaranteed
	default:
		return corev1.PodQOSBurstable
	}
}

func sum(into, add corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		q, ok := add[name]
		if !ok || q.Sign() <= 0 {
			continue
		}
		total := into[name]
		total.Add(q)
		into[name] = total
	}
}

func positive(l corev1.ResourceList, name corev1.ResourceName) bool {
	q, ok := l[name]
	return ok && q.Sign() > 0
}

func quantity(l corev1.ResourceList, name corev1.ResourceName) (resource.Quantity, bool) {
	q, ok := l[name]
	return q, ok && q.Sign() > 0
}

const (
	kubepods  = "kubepods"
	podPrefix = "pod"
)

// QoSPath is the group of a whole class below the cgroup root, as the cgroupfs driver names it: Guaranteed pods sit
// directly under kubepods.
func QoSPath(root string, q corev1.PodQOSClass) string {
	return plainPath(root, qosNames(q)...)
}

// PodPath is the group of a pod, as the cgroupfs driver names it.
func PodPath(root string, uid types.UID, q corev1.PodQOSClass) string {
	return QoSPath(root, q) + "/" + podPrefix + string(uid)
}

func qosNames(q corev1.PodQOSClass) []string {
	switch q {
	case corev1.PodQOSBurstable:
		return []string{kubepods, "burstable"}
	case corev1.PodQOSBestEffort:
		return []string{kubepods, "besteffort"}
	}
	return []string{kubepods}
}
