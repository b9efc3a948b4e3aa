package admission

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/cgroups/kube"
)

// Victims are the pods that have to end for one that has not got what it requests, by kubelet's rules: none when even
// all that it outranks would not be enough, else first those of the lowest QoS class, and as few as will do. lacks
// says whether anything is lacking at all.
func Victims(pod *corev1.Pod, here []*corev1.Pod, allocatable corev1.ResourceList) (victims []*corev1.Pod, lacks bool) {
	missing := lacking(pod, here, allocatable)
	if len(missing) == 0 {
		return nil, false
	}
	victims, _ = chooseVictims(pod, here, missing)
	return victims, true
}

// Preempts says whether others may have to end for a pod.
func Preempts(pod *corev1.Pod) bool {
	p := pod.Spec.PreemptionPolicy
	return (p == nil || *p != corev1.PreemptNever) && critical(pod)
}

// systemCritical is the priority from which on pods are critical, by the API.
const systemCritical = 2_000_000_000

// critical says whether a pod is one that others may end for.
func critical(pod *corev1.Pod) bool {
	return desired.RulesOf(pod).Critical || Priority(pod) >= systemCritical
}

// outranks says whether a pod may have another one end for it.
func outranks(pod, other *corev1.Pod) bool {
	return critical(pod) && !critical(other) || Priority(pod) > Priority(other)
}

// lacking is how much the pod requests beyond what those that are here leave.
func lacking(pod *corev1.Pod, here []*corev1.Pod, allocatable corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	want := need(pod)
	for _, name := range append(ordered(allocatable, want), corev1.ResourcePods) {
		asked, limited := want[name], allocatable[name]
		if _, ok := allocatable[name]; !ok || asked.Sign() <= 0 || device.IsExtended(name) {
			continue // devices are not the requests' to count: some may be ill
		}
		left := limited.DeepCopy()
		for _, p := range here {
			left.Sub(need(p)[name])
		}
		if asked.Sub(left); asked.Sign() > 0 {
			out[name] = asked
		}
	}
	return out
}

// need is what a pod takes of the node, itself included.
func need(pod *corev1.Pod) corev1.ResourceList {
	out := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	out[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return out
}

// Priority of a pod without any is that of pods in a cluster without classes.
func Priority(pod *corev1.Pod) int32 {
	if p := pod.Spec.Priority; p != nil {
		return *p
	}
	return 0
}

// chooseVictims is which pods have to go for what is lacking; false when there are not enough that it outranks.
func chooseVictims(pod *corev1.Pod, here []*corev1.Pod, lacks corev1.ResourceList) ([]*corev1.Pod, bool) {
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	var all []*corev1.Pod
	// Of pods that are equal in all else the one of the lowest priority goes.
	here = slices.SortedFunc(slices.Values(here), func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(Priority(a), Priority(b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range here {
		if outranks(pod, p) {
			q := kube.QoS(p)
			classes[q], all = append(classes[q], p), append(all, p)
		}
	}
	if len(beyond(lacks, all)) > 0 {
		return nil, false
	}
	// Of the better classes only so much as all of the worse ones together do not have.
	best, burst := classes[corev1.PodQOSBestEffort], classes[corev1.PodQOSBurstable]
	out := nearest(classes[corev1.PodQOSGuaranteed], beyond(lacks, slices.Concat(best, burst)))
	out = append(out, nearest(burst, beyond(lacks, slices.Concat(best, out)))...)
	out = append(out, nearest(best, beyond(lacks, out))...)
	return out, true
}

// beyond is what is still lacking when the pods have gone.
func beyond(lacks corev1.ResourceList, gone []*corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range lacks {
		rest := q.DeepCopy()
		for _, p := range gone {
			rest.Sub(need(p)[name])
		}
		if rest.Sign() > 0 {
			out[name] = rest
		}
	}
	return out
}

// nearest takes pods, the one that comes nearest to what is lacking first, and of two equally near ones the smaller.
func nearest(pods []*corev1.Pod, lacks corev1.ResourceList) []*corev1.Pod {
	var out []*corev1.Pod
	pods = slices.Clone(pods)
	for len(lacks) > 0 && len(pods) > 0 {
		at := 0
		for i := range pods {
			d, least := distance(lacks, pods[i]), distance(lacks, pods[at])
			if d < least || d == least && smaller(pods[i], pods[at]) {
				at = i
			}
		}
		out = append(out, pods[at])
		lacks = beyond(lacks, pods[at:at+1])
		pods = slices.Delete(pods, at, at+1)
	}
	return out
}

// distance is 0 for a pod that has all that is lacking, and grows with the square of the share that it does not have.
func distance(lacks corev1.ResourceList, pod *corev1.Pod) float64 {
	sum, has := 0.0, need(pod)
	for name, q := range lacks {
		have := has[name]
		if missing := q.AsApproximateFloat64() - have.AsApproximateFloat64(); missing > 0 {
			share := missing / q.AsApproximateFloat64()
			sum += share * share
		}
	}
	return sum
}

// smaller compares by memory, then by CPU.
func smaller(a, b *corev1.Pod) bool {
	x, y := need(a), need(b)
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		p, q := x[name], y[name]
		if c := p.Cmp(q); c != 0 {
			return c < 0
		}
	}
	return false
}
