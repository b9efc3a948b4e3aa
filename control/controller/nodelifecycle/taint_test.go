package nodelifecycle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTainted keeps what is somebody else's, and when a taint was added.
func TestTainted(t *testing.T) {
	before, now := metav1.Unix(1, 0), metav1.Unix(2, 0)
	have := []corev1.Taint{
		{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &before},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute, TimeAdded: &before},
		{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule},
	}
	got := tainted(have, []string{corev1.TaintNodeUnreachable}, corev1.TaintNodeUnreachable, now)
	if len(got) != 3 || got[0].Key != "dedicated" || !got[1].TimeAdded.Equal(&before) || got[2].Effect != corev1.TaintEffectNoExecute || !got[2].TimeAdded.Equal(&now) {
		t.Errorf("it has %v", got)
	}
	if got := tainted(got, nil, "", now); len(got) != 1 {
		t.Errorf("a node that is well has %v", got)
	}
}
