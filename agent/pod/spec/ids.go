package spec

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// IDs are the ids of the node, of users and of groups, that a pod has to itself: what is 0 in the pod is First on the
// node.
type IDs struct {
	First  uint32 `json:"first"`
	Length uint32 `json:"length"`
}

// OwnUsers says whether a pod has ids of its own.
func OwnUsers(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

func (i *IDs) mappings() []*runtimeapi.IDMapping {
	if i == nil {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: i.First, ContainerId: 0, Length: i.Length}}
}

func (i *IDs) namespace() *runtimeapi.UserNamespace {
	if i == nil {
		return nil // says the same as the node's, also to runtimes that know nothing of it
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: i.mappings(), Gids: i.mappings()}
}
