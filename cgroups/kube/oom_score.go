package kube

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// The oom_score_adj of a container decides whom the kernel kills when the node runs out. The kernel adds it, as
// thousandths of the node's memory, to what the process uses, so a Burstable container that stays within its request is
// safer than any that exceeds its own.
const (
	guaranteedOOM = -997 // -999 is the agent's, -998 is left to the runtime
	bestEffortOOM = 1000
	// systemNodeCritical is the priority of the class system-node-critical.
	systemNodeCritical     = 2_000_001_000
	systemNodeCriticalName = "system-node-critical"
)

// OOMScoreAdj is kubelet's: -997 for Guaranteed and node-critical pods, 1000 for BestEffort, and for Burstable 1000
// less the share of the node's memory the container requests, kept between 3 and 999 so that it stays between the other
// two.
func OOMScoreAdj(pod *corev1.Pod, c *corev1.Container, nodeMemory int64) int {
	if nodeCritical(pod) {
		return guaranteedOOM
	}
	switch QoS(pod) {
	case corev1.PodQOSGuaranteed:
		return guaranteedOOM
	case corev1.PodQOSBestEffort:
		return bestEffortOOM
	}
	adj := burstableOOM(pod, c, nodeMemory)
	if !isSidecar(pod, c) {
		return adj
	}
	// A sidecar counts as if it asked for no less than the smallest of the containers it serves: it is no likelier to
	// be killed than that one, and no safer for another that asks for more.
	least := 0
	for i := range pod.Spec.Containers {
		least = max(least, burstableOOM(pod, &pod.Spec.Containers[i], nodeMemory))
	}
	if len(pod.Spec.Containers) > 0 {
		adj = min(adj, least)
	}
	return adj
}

func burstableOOM(pod *corev1.Pod, c *corev1.Container, nodeMemory int64) int {
	if nodeMemory <= 0 {
		return bestEffortOOM - 1
	}
	request := c.Resources.Requests.Memory().Value() + podShare(pod)
	// In 128 bits it would be exact; memory of a petabyte times a thousand still fits in 63 bits.
	adj := 1000 - int(1000*request/nodeMemory)
	return min(max(adj, 1000+guaranteedOOM), bestEffortOOM-1)
}

// podShare divides what a pod-level memory request has over the containers' own requests evenly among them.
func podShare(pod *corev1.Pod) int64 {
	if !resourcehelper.IsPodLevelRequestsSet(pod) {
		return 0
	}
	n := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
	total, ok := pod.Spec.Resources.Requests[corev1.ResourceMemory]
	if !ok || n == 0 {
		return 0
	}
	own := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	return max(total.Value()-own.Memory().Value(), 0) / n
}

func nodeCritical(pod *corev1.Pod) bool {
	if pod.Spec.PriorityClassName == systemNodeCriticalName {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemNodeCritical
}

func isSidecar(pod *corev1.Pod, c *corev1.Container) bool {
	for i := range pod.Spec.InitContainers {
		ic := &pod.Spec.InitContainers[i]
		if ic.Name == c.Name {
			return ic.RestartPolicy != nil && *ic.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}
