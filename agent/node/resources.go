package node

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// isExtended says whether a resource is none of Kubernetes' own: of a device plugin, or one that people have
// advertised by hand.
func isExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	kubernetes := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
	return qualified && !kubernetes && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// divide is what the Node says that there is, and what of it can be asked for. Before is what it has said: resources
// that people have advertised on it are theirs, and stay.
func (r *Resources) divide(before corev1.ResourceList, first bool) (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, q := range before {
		if !isExtended(name) {
			continue // huge pages of a size that the machine has no more, and the like
		}
		if first && r.Fresh {
			// A scheduler that has pods use devices which nobody knows to be there would have them fail.
			q = none()
		}
		capacity[name], allocatable[name] = q.DeepCopy(), q.DeepCopy()
	}
	for name, q := range r.Capacity {
		capacity[name] = q.DeepCopy()
		can, ok := r.Allocatable[name]
		if !ok {
			can = q
		}
		allocatable[name] = can.DeepCopy()
	}
	for name, q := range r.Devices {
		capacity[name], allocatable[name] = q.DeepCopy(), none()
		if well, ok := r.Well[name]; ok {
			allocatable[name] = well.DeepCopy()
		}
	}
	// With 0 of it, and not without it, the scheduler knows that it is a node's and not the whole cluster's.
	for _, name := range r.Gone {
		if _, has := r.Devices[name]; !has {
			capacity[name], allocatable[name] = none(), none()
		}
	}
	return capacity, allocatable
}

// none is of what there is nothing of.
func none() resource.Quantity { return *resource.NewQuantity(0, resource.DecimalSI) }

// missing are the resources without which no pod can be placed.
func missing(n *corev1.Node) []string {
	var out []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
		if _, has := n.Status.Capacity[name]; !has {
			out = append(out, string(name))
		}
	}
	return slices.Clip(out)
}
