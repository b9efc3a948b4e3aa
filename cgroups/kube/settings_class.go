package kube

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/cgroups"
)

// ClassSettings are the settings of the group of a QoS class that follow from its pods, as [Tree.SyncQoS] makes them.
// The Guaranteed class has no group but that of all pods, whose settings are the node's.
func ClassSettings(m cgroups.Mode, class corev1.PodQOSClass, pods []*corev1.Pod, o Options) []Setting {
	if class == corev1.PodQOSGuaranteed {
		return nil
	}
	var cpu, memory int64
	n := 0
	for _, p := range pods {
		if QoS(p) != class || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
		cpu += requests.Cpu().MilliValue()
		memory += requests.Memory().Value()
		n++
	}
	shares, file, want := Shares(cpu), "cpu.shares", ""
	field := fmt.Sprintf("requests.cpu=%dm (sum of %d pods)", cpu, n)
	computed := fmt.Sprintf("%d * 1024 / 1000 = %d shares", cpu, shares)
	if class == corev1.PodQOSBestEffort {
		field, computed = "class of the pods", fmt.Sprintf("%d shares, the least there are", shares)
	}
	want = strconv.FormatUint(shares, 10)
	if m == cgroups.Unified {
		file, want = "cpu.weight", strconv.FormatUint(cgroups.Weight(shares), 10)
		computed += " = weight " + want
	}
	s := one(field, computed, file, want)
	if m == cgroups.Unified {
		s.also = otherWeights(shares) // of kubelets of other versions
	}
	out := []Setting{s}
	if o.MemoryQoS && o.Unified && class == corev1.PodQOSBurstable {
		v := strconv.FormatInt(memory, 10)
		out = append(out, one(fmt.Sprintf("requests.memory of %d pods, node's memory QoS", n), v+" bytes", "memory.min", v))
	}
	return out
}
