package signal

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Resources that have no name in the Kubernetes API, by kubelet's names for them.
const (
	ResourceInodes corev1.ResourceName = "inodes"
	ResourcePIDs   corev1.ResourceName = "pids"
)

// All are the signals there are, the memory's first, as they are looked at.
func All() []Signal {
	return []Signal{
		MemoryAvailable, AllocatableMemoryAvailable, NodeFsAvailable, NodeFsInodesFree, ImageFsAvailable,
		ImageFsInodesFree, ContainerFsAvailable, ContainerFsInodesFree, PIDAvailable,
	}
}

// Resource is what pods have of that of which a signal says how much is left; "" for no signal of ours.
func (s Signal) Resource() corev1.ResourceName {
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return corev1.ResourceMemory
	case NodeFsAvailable, ImageFsAvailable, ContainerFsAvailable, EmptyDirLimit, PodLimit, ContainerLimit:
		return corev1.ResourceEphemeralStorage
	case NodeFsInodesFree, ImageFsInodesFree, ContainerFsInodesFree:
		return ResourceInodes
	case PIDAvailable:
		return ResourcePIDs
	}
	return ""
}

// Condition is what the node says of itself for want of it; "" for no signal of ours, and for those of one pod.
func (s Signal) Condition() corev1.NodeConditionType {
	if slices.Contains(Limits(), s) {
		return ""
	}
	switch s.Resource() {
	case corev1.ResourceMemory:
		return corev1.NodeMemoryPressure
	case corev1.ResourceEphemeralStorage, ResourceInodes:
		return corev1.NodeDiskPressure
	case ResourcePIDs:
		return corev1.NodePIDPressure
	}
	return ""
}

// Requestable says whether pods can ask for the resource, so that what they have can be more than they asked for.
func (s Signal) Requestable() bool {
	r := s.Resource()
	return r == corev1.ResourceMemory || r == corev1.ResourceEphemeralStorage
}

// Unit is what amounts of it are counted in.
func (s Signal) Unit() string {
	switch {
	case s.Requestable():
		return "bytes"
	case s.Resource() == ResourceInodes:
		return "inodes"
	}
	return "tasks"
}

// Format writes an amount of it as kubelet does: bytes with binary suffixes, what is counted with decimal ones.
func (s Signal) Format(amount int64) string {
	format := resource.BinarySI
	if !s.Requestable() {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(amount, format).String()
}
