package desired

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
)

func TestRefsOfResourceClaims(t *testing.T) {
	name, template := "gpu", "gpus"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p-node", Namespace: "default", UID: "u"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: &name}, {Name: "b", ResourceClaimTemplateName: &template}}
	want := []object.Ref{
		object.RefTo(object.ResourceClaim, "default", "gpu"), object.RefTo(object.ResourceClaim, "default", "p-node-b"),
		object.RefTo(object.ResourceClaimTemplate, "default", "gpus"),
	}
	if refs := Refs(pod); !slices.Equal(refs, want) {
		t.Errorf("the pod refers to %v", refs)
	}
}

func TestRefsOfAPIPods(t *testing.T) {
	template, made := "gpus", "p-b-x7k2p"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "p", Namespace: "default", Annotations: map[string]string{AnnotationSource: string(API)},
	}}
	pod.Spec.PriorityClassName = "high"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "b", ResourceClaimTemplateName: &template}, {Name: "none", ResourceClaimTemplateName: &template},
	}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: &made}, {Name: "none"}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}},
	}}}
	want := []object.Ref{object.RefTo(object.Secret, "default", "s"), object.RefTo(object.ResourceClaim, "default", made)}
	if refs := Refs(pod); !slices.Equal(refs, want) {
		t.Errorf("the pod refers to %v", refs)
	}
}
