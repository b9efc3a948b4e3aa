package defaultpreemption

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// TestManyBudgets has thousands of budgets be read once, however many victims are asked about on however many nodes,
// and those of other namespaces never.
func TestManyBudgets(t *testing.T) {
	var list []*policyv1.PodDisruptionBudget
	for i := range 2000 {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("n", i%2), Name: fmt.Sprint(i)}}
		b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}}
		b.Status.DisruptionsAllowed = 1
		list = append(list, b)
	}
	list[1].Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "nonsense"}}
	var pods []fwk.PodInfo
	for i := range 200 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n0", Name: fmt.Sprint(i), Labels: map[string]string{"app": fmt.Sprint(i / 2 * 2)}}}
		info, err := cluster.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, info)
	}
	all := newBudgets(list)
	violating, others := all.part(pods)
	if len(violating) != 100 || len(others) != 100 {
		t.Errorf("%d pods break a budget, %d do not", len(violating), len(others))
	}
	if n := testing.AllocsPerRun(5, func() { all.part(pods) }); n > 1000 {
		t.Errorf("another node costs %.0f allocations", n)
	}
}

// TestOverlappingBudgets has a pod be under thousands of budgets that select everything in its namespace, by a label or
// by none: as many are looked at as for any other, the same ones each time, and pods of others are none the worse.
func TestOverlappingBudgets(t *testing.T) {
	var list []*policyv1.PodDisruptionBudget
	add := func(namespace, name string, s *metav1.LabelSelector, allowed int32) {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		b.Spec.Selector, b.Status.DisruptionsAllowed = s, allowed
		list = append(list, b)
	}
	everything := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "none", Operator: metav1.LabelSelectorOpDoesNotExist}}}
	labelled := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	for i := range 5000 {
		add("crowd", fmt.Sprintf("a%04d", 4999-i), everything, 5)
		add("crowd", fmt.Sprintf("b%04d", i), labelled, 5)
	}
	add("alone", "one", labelled, 0)
	all := newBudgets(list)
	var pods []fwk.PodInfo
	for _, namespace := range []string{"crowd", "alone", "other"} {
		for i := range 10 {
			info, err := cluster.NewPodInfo(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(i), Labels: map[string]string{"app": "x"}}})
			if err != nil {
				t.Fatal(err)
			}
			pods = append(pods, info)
		}
	}
	near := all.near(pods[0].GetPod())
	if len(near) != mostBudgets || near[0].object.Name != "a0000" || near[mostBudgets-1].object.Name != "a0099" {
		t.Errorf("%d budgets are looked at", len(near))
	}
	violating, others := all.part(pods)
	if len(violating) != 15 || len(others) != 15 {
		t.Errorf("%d pods break a budget, %d do not", len(violating), len(others))
	}
}
