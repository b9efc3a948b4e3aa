// Package resources has what pods ask for and what nodes have of it in numbers, for filters and for scores.
package resources

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
)

// A container that says nothing counts as much when nodes are scored: without it, all pods of this kind would go to
// the same node.
const (
	DefaultMilliCPU = 100
	DefaultMemory   = 200 << 20
)

// Wanted is what a pod that has no node yet asks for.
func Wanted(pod *corev1.Pod) corev1.ResourceList {
	return helpers.PodRequests(pod, helpers.PodResourcesOptions{})
}

// Held is what a pod on a node has or is about to have, whichever is more: while it is resized, its containers still
// have what the node allocated.
func Held(pod *corev1.Pod) corev1.ResourceList {
	return helpers.PodRequests(pod, helpers.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

// WantedAtLeast is what a pod asks for, with the least that a container counts for CPU and memory.
func WantedAtLeast(pod *corev1.Pod) corev1.ResourceList {
	return helpers.PodRequests(pod, helpers.PodResourcesOptions{NonMissingContainerRequests: least()})
}

// HeldAtLeast is Held, with the least that a container counts for CPU and memory.
func HeldAtLeast(pod *corev1.Pod) corev1.ResourceList {
	return helpers.PodRequests(pod, helpers.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true, NonMissingContainerRequests: least(),
	})
}

func least() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.BinarySI),
	}
}

// Amount is how much of a resource a list has: thousandths of CPUs, units of all else.
func Amount(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q, ok := list[name]
	if !ok {
		return 0
	}
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// Of is how much of a resource a node has, or its pods ask for together.
func Of(r fwk.Resource, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.GetMilliCPU()
	case corev1.ResourceMemory:
		return r.GetMemory()
	case corev1.ResourceEphemeralStorage:
		return r.GetEphemeralStorage()
	}
	return r.GetScalarResources()[name]
}

// Common says of CPU, memory and ephemeral storage that every node has them.
func Common(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

// Extended says of a resource that somebody has added it to nodes: its name has a domain that is not Kubernetes'.
func Extended(name corev1.ResourceName) bool {
	domain, _, found := strings.Cut(string(name), "/")
	return found && !strings.HasPrefix(domain, corev1.DefaultResourceRequestsPrefix) &&
		!strings.Contains(domain+"/", corev1.ResourceDefaultNamespacePrefix)
}
