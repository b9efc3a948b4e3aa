// Package resources has what pods ask for and what nodes have of it in numbers, for filters and for scores.
package resources

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// WantedAtLeast is what a pod asks for, with the least that a container counts for CPU and memory when nodes are
// scored: without it, all pods that ask for nothing would go to the same node.
func WantedAtLeast(pod *corev1.Pod) corev1.ResourceList {
	return helpers.PodRequests(pod, helpers.PodResourcesOptions{NonMissingContainerRequests: corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(cluster.DefaultMilliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(cluster.DefaultMemory, resource.BinarySI),
	}})
}

// Amount is how much of a resource a list has: thousandths of CPUs, units of all else.
func Amount(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q, ok := list[name]
	if !ok {
		return 0
	}
	n := q.Value()
	if name == corev1.ResourceCPU {
		n = q.MilliValue()
	}
	// What no number can say comes out as nothing, or less. It is more than any node has.
	if n <= 0 && q.Sign() > 0 {
		return math.MaxInt64
	}
	return n
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
