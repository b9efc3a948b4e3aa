package inspect

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// namedPod is what names are told by. To decode all else of a hundred pods takes as long as to read a thousand files.
type namedPod struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         types.UID         `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Init       []namedContainer `json:"initContainerStatuses"`
		Containers []namedContainer `json:"containerStatuses"`
		Ephemeral  []namedContainer `json:"ephemeralContainerStatuses"`
	} `json:"status"`
}

type namedContainer struct {
	Name        string `json:"name"`
	ContainerID string `json:"containerID"`
}

// parseNames decodes a list of pods, or a pod, as [parsePods] does, and of each nothing but the fields of [namedPod].
func parseNames(data []byte) ([]corev1.Pod, error) {
	var list struct {
		namedPod
		Items []namedPod `json:"items"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("decode pods: %w", err)
	}
	if len(list.Items) == 0 && list.Kind == "Pod" {
		list.Items = []namedPod{list.namedPod}
	}
	out := make([]corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, list.Items[i].pod())
	}
	return out, nil
}

func (p *namedPod) pod() corev1.Pod {
	var out corev1.Pod
	m := &p.Metadata
	out.Name, out.Namespace, out.UID, out.Annotations = m.Name, m.Namespace, m.UID, m.Annotations
	out.Spec.NodeName = p.Spec.NodeName
	out.Status.InitContainerStatuses = statuses(p.Status.Init)
	out.Status.ContainerStatuses = statuses(p.Status.Containers)
	out.Status.EphemeralContainerStatuses = statuses(p.Status.Ephemeral)
	return out
}

func statuses(named []namedContainer) []corev1.ContainerStatus {
	out := make([]corev1.ContainerStatus, 0, len(named))
	for _, c := range named {
		out = append(out, corev1.ContainerStatus{Name: c.Name, ContainerID: c.ContainerID})
	}
	return out
}
