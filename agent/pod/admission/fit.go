package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/cgroups/kube"
)

// Capacity is what pods have of the node's resources, and what they may have.
type Capacity interface {
	// Allocatable is what pods may request. Of an extended resource that is not in it nobody here has ever had any.
	Allocatable() corev1.ResourceList
	// Using is what the pods of other names have that use resources, or that get some before this one does.
	Using(*Request) *Sum
	// Preempt ends pods of lower priority, if their end is of use, and says whether the pod is to wait for that.
	Preempt(*Request) bool
}

// Fit has a pod wait for what it requests. It is to be the last check: for a pod that has nothing else to wait for,
// others may have to go.
func Fit(node Capacity) Check {
	return func(r *Request) *Verdict {
		v := fits(r.Pod, node.Using(r), node.Allocatable())
		if v != nil && !v.Final && node.Preempt(r) {
			v.Message += "; pods of lower priority end for it"
		}
		return v
	}
}

// fits says whether what the pod requests is there beside what those that are here request, in the words that people
// know from kubelet. What the node alone does not have, it never will.
func fits(pod *corev1.Pod, here *Sum, allocatable corev1.ResourceList) *Verdict {
	if err := errors.Join(kube.CheckAnnotations(pod.Annotations), kube.CheckLimits(pod)); err != nil {
		return never(pinning.ReasonAdmission, err.Error())
	}
	want := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	if most, ok := allocatable[corev1.ResourcePods]; ok && here.pods >= most.Value() {
		return short(corev1.ResourcePods, 1, here.pods, most.Value())
	}
	elsewhere := desired.RulesOf(pod).CountedElsewhere
	for _, name := range ordered(allocatable, want) {
		asked := want[name]
		have, known := allocatable[name]
		if asked.Sign() <= 0 || !known && elsewhere && device.IsExtended(name) {
			continue
		}
		taken := here.requests[name]
		sum := taken.DeepCopy()
		sum.Add(asked)
		switch {
		case sum.Cmp(have) <= 0:
		case device.IsExtended(name):
			// A plugin may offer more of them at any time.
			v := short(name, asked.Value(), taken.Value(), have.Value())
			v.Final = false
			return v
		case name == corev1.ResourceCPU:
			return short(name, asked.MilliValue(), taken.MilliValue(), have.MilliValue())
		default:
			return short(name, asked.Value(), taken.Value(), have.Value())
		}
	}
	return nil
}

// ordered are the resources that pods can run out of, the CPU first, and those of devices that the pod wants last. Of
// huge pages that the node does not know it has none.
func ordered(have, want corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for name := range have {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			out = append(out, name)
		}
	}
	for name := range want {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return append(out, extended(want)...)
}

// short is the verdict of a resource that there is not enough of: final where all of the node's is not enough.
func short(name corev1.ResourceName, requested, used, capacity int64) *Verdict {
	v := waits("OutOf"+string(name), fmt.Sprintf(
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity))
	v.Final = requested > capacity
	return v
}

// extended are the resources of plugins in a list, in order.
func extended(l corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for name := range l {
		if device.IsExtended(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
