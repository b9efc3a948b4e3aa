package pod

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-node/berth/agent/device"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/cgroups/kube"
)

// share is what an admitted pod has of the node. It is worked out once: whoever comes later is judged beside all that are here.
type share struct {
	pod      *corev1.Pod // as it came
	requests corev1.ResourceList
	ports    []hostPort
}

func shareOf(pod *corev1.Pod) *share {
	return &share{pod, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}), hostPorts(pod)}
}

// fits says whether what the pod requests is there beside what those that are here request, in the words that people know from
// kubelet. What the node alone does not have, it never will.
func fits(pod *corev1.Pod, here []*share, allocatable corev1.ResourceList) (verdict, bool) {
	if err := errors.Join(kube.CheckAnnotations(pod.Annotations), kube.CheckLimits(pod)); err != nil {
		return verdict{status.Waiting{Reason: pinning.ReasonAdmission, Message: err.Error()}, true}, false
	}
	want := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	if most, ok := allocatable[corev1.ResourcePods]; ok && int64(len(here)) >= most.Value() {
		return short(corev1.ResourcePods, 1, int64(len(here)), most.Value()), false
	}
	for _, name := range ordered(allocatable, want) {
		asked, have := want[name], allocatable[name]
		if asked.Sign() <= 0 {
			continue
		}
		var taken resource.Quantity
		for _, other := range here {
			taken.Add(other.requests[name])
		}
		sum := taken.DeepCopy()
		sum.Add(asked)
		switch {
		case sum.Cmp(have) <= 0:
		case device.IsExtended(name):
			// A plugin may offer more of them at any time.
			v := short(name, asked.Value(), taken.Value(), have.Value())
			v.final = false
			return v, false
		case name == corev1.ResourceCPU:
			return short(name, asked.MilliValue(), taken.MilliValue(), have.MilliValue()), false
		default:
			return short(name, asked.Value(), taken.Value(), have.Value()), false
		}
	}
	return verdict{}, true
}

// ordered are the resources that pods can run out of, the CPU first, and those of devices that the pod wants last. Of huge pages that
// the node does not know it has none.
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

func short(name corev1.ResourceName, requested, used, capacity int64) verdict {
	return verdict{
		status.Waiting{
			Reason:  "OutOf" + string(name),
			Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity),
		},
		requested > capacity,
	}
}
