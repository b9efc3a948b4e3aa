package owned

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestManySelecting has thousands of owners be asked about an object that has none: nothing is read anew for each.
func TestManySelecting(t *testing.T) {
	var all []*appsv1.ReplicaSet
	for i := range 2000 {
		s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
		s.Spec.Selector = &metav1.LabelSelector{
			MatchLabels:      map[string]string{"app": fmt.Sprint(i)},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"a", "b", "c"}}},
		}
		all = append(all, s)
	}
	all[7].Spec.Selector, all[8].Spec.Selector = nil, &metav1.LabelSelector{}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "5"}}}
	in := func(string) ([]*appsv1.ReplicaSet, error) { return all, nil }
	of := func(s *appsv1.ReplicaSet) *metav1.LabelSelector { return s.Spec.Selector }
	if n := testing.AllocsPerRun(5, func() {
		if keys := Selecting(pod, in, of); len(keys) != 1 || keys[0].Name != "5" {
			t.Fatalf("they are %v", keys)
		}
	}); n > 100 {
		t.Errorf("it costs %.0f allocations", n)
	}
}
