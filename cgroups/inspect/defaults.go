package inspect

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// setDefaults gives a pod of a manifest the requests that the API gives it: a container asks for its limits where it
// says nothing, and a pod as a whole for the sum of its containers' requests, or else for its limits. Whoever has made
// its groups has seen it so.
func setDefaults(pod *corev1.Pod) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			fill(&list[i].Resources.Requests, list[i].Resources.Limits)
		}
	}
	r := pod.Spec.Resources
	if r == nil || len(r.Requests)+len(r.Limits) == 0 {
		return
	}
	sum := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	for name := range sum {
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			delete(sum, name) // a pod as a whole asks for nothing else
		}
	}
	fill(&r.Requests, sum)
	fill(&r.Requests, r.Limits)
}

func fill(into *corev1.ResourceList, from corev1.ResourceList) {
	for name, q := range from {
		if _, ok := (*into)[name]; ok {
			continue
		}
		if *into == nil {
			*into = corev1.ResourceList{}
		}
		(*into)[name] = q.DeepCopy()
	}
}
