package device

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// IsExtended says of a resource that only somebody beside the node itself can offer it, by the API's rule for its name.
func IsExtended(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasPrefix(domain, corev1.DefaultResourceRequestsPrefix)
}

// ask is what one container asks for.
type ask struct {
	container string
	init      bool // it ends before the others begin, who can have what it had
	counts    map[corev1.ResourceName]int
}

// asks are what the containers of a pod ask for, in the order of their start.
func asks(pod *corev1.Pod) []ask {
	var out []ask
	one := func(c *corev1.Container, init bool) {
		k := ask{container: c.Name, counts: map[corev1.ResourceName]int{}}
		k.init = init && (c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways)
		// The API wants limits of such resources, which are their requests too.
		for name, q := range c.Resources.Limits {
			if IsExtended(name) && q.Value() > 0 {
				k.counts[name] = int(q.Value())
			}
		}
		if len(k.counts) > 0 {
			out = append(out, k)
		}
	}
	for i := range pod.Spec.InitContainers {
		one(&pod.Spec.InitContainers[i], true)
	}
	for i := range pod.Spec.Containers {
		one(&pod.Spec.Containers[i], false)
	}
	return out
}

// split is what of this is the node's to give, and the resources that the pod does without.
func split(all []ask, ours func(corev1.ResourceName) bool) (out []ask, without []corev1.ResourceName) {
	for _, k := range all {
		counts := map[corev1.ResourceName]int{}
		for _, name := range k.names() {
			switch {
			case ours(name):
				counts[name] = k.counts[name]
			case !slices.Contains(without, name):
				without = append(without, name)
			}
		}
		if k.counts = counts; len(counts) > 0 {
			out = append(out, k)
		}
	}
	return out, without
}

// names are the resources that a container asks for, in order.
func (k *ask) names() []corev1.ResourceName { return slices.Sorted(maps.Keys(k.counts)) }

// whole is what a pod asks for at the same time at most.
func whole(all []ask) ask {
	run, most := map[corev1.ResourceName]int{}, map[corev1.ResourceName]int{}
	for _, k := range all {
		for name, n := range k.counts {
			if k.init {
				most[name] = max(most[name], run[name]+n)
			} else {
				run[name] += n
			}
		}
	}
	for name, n := range run {
		most[name] = max(most[name], n)
	}
	return ask{counts: most}
}
