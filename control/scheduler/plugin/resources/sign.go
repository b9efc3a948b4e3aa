package resources

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Signed is what a pod asks for, in its signature. It is summed up only when it is written: of the plugins that sign
// it, one is asked.
type Signed struct{ Pod *corev1.Pod }

// MarshalJSON implements [json.Marshaler].
func (s Signed) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(cluster.Requests(s.Pod))
	if err != nil {
		return nil, fmt.Errorf("write requests of pod: %w", err)
	}
	return text, nil
}

// Plain says whether a pod's containers ask for nothing but what every node has, and whether each of them asks for CPU
// and memory, so that none counts for more.
func Plain(pod *corev1.Pod) (common, complete bool) {
	common, complete = true, true
	look := func(list corev1.ResourceList) {
		for name := range list {
			common = common && Common(name)
		}
	}
	each := func(c *corev1.Container) {
		look(c.Resources.Requests)
		_, cpu := c.Resources.Requests[corev1.ResourceCPU]
		_, memory := c.Resources.Requests[corev1.ResourceMemory]
		complete = complete && cpu && memory
	}
	for i := range pod.Spec.InitContainers {
		each(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		each(&pod.Spec.Containers[i])
	}
	look(pod.Spec.Overhead)
	if r := pod.Spec.Resources; r != nil {
		look(r.Requests)
	}
	return common, complete
}
