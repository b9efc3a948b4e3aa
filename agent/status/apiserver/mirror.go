package apiserver

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// mirrorOf is the mirror pod of a static pod.
func mirrorOf(pod *corev1.Pod, node string, uid types.UID) *corev1.Pod {
	annotations := maps.Clone(pod.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	// People and kubectl find the static pod's events by it.
	annotations[desired.AnnotationMirror] = pod.Annotations[desired.AnnotationHash]
	m := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels, Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid, Controller: new(true)}},
		},
		Spec: *pod.Spec.DeepCopy(),
	}
	m.Spec.NodeName = node
	// They are added to a pod that there is, and the server refuses one that comes with them.
	m.Spec.EphemeralContainers = nil
	// The server calculates them from the class, and refuses other values than its own.
	m.Spec.Priority, m.Spec.PreemptionPolicy = nil, nil
	return m
}

// errMirror says why a static pod has no mirror pod.
type errMirror struct{ what string }

func (e errMirror) Error() string {
	return fmt.Sprintf("a node may not make a pod that refers to a %s: the pod runs, and has no mirror pod", e.what)
}

// cannotMirror names what keeps a static pod from having a mirror pod, "" when nothing does. A node that could make
// pods with references could read what they refer to.
func cannotMirror(pod *corev1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "ServiceAccount"
	}
	for _, r := range desired.Refs(pod) {
		switch r.Kind {
		case object.RuntimeClass, object.PriorityClass:
		default:
			return string(r.Kind)
		}
	}
	return ""
}
