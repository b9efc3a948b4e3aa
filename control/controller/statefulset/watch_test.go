package statefulset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestByName finds the sets of pods and claims by the names that only theirs have, however many sets there are.
func TestByName(t *testing.T) {
	sets := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Apps().V1().StatefulSets()
	k := &keeper{sets: sets.Lister()}
	for _, name := range []string{"a", "b-a", "other"} {
		s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}}
		s.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}, {ObjectMeta: metav1.ObjectMeta{Name: "data-b"}}}
		if err := sets.Informer().GetIndexer().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int{
		"data-a-0": 1, "data-b-a-7": 2, "data-other-x": 1, "data-c-0": 0, "data": 0, "": 0, "-": 0, "x-a-0": 0,
	} {
		if keys := k.ofClaim(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}}); len(keys) != want {
			t.Errorf("claim %q is of %v", name, keys)
		}
	}
	for name, want := range map[string]string{"a-0": "a", "b-a-3": "b-a", "a-x": "", "a-01": "", "c-0": "", "a": "", "-1": ""} {
		keys := k.ofOrphan(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{"app": "x"}}})
		if want == "" && len(keys) != 0 || want != "" && (len(keys) != 1 || keys[0].Name != want) {
			t.Errorf("pod %q is of %v", name, keys)
		}
	}
	if keys := k.ofOrphan(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a-0"}}); len(keys) != 0 {
		t.Errorf("a pod without labels is of %v", keys)
	}
}
