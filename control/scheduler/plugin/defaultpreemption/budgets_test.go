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

// TestLargeBudgets has budgets be as large as objects may be: what is looked at for a pod is bounded, and a budget of a
// common size counts all the same.
func TestLargeBudgets(t *testing.T) {
	values := make([]string, 20_000)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	var list []*policyv1.PodDisruptionBudget
	for i := range 60 {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("a%02d", i)}}
		b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "no", Operator: metav1.LabelSelectorOpNotIn, Values: values[:20+i/30*19_000]},
		}}
		if i%2 == 0 {
			b.Spec.Selector.MatchLabels = map[string]string{"app": "x"}
		}
		b.Status.DisruptionsAllowed = 1
		list = append(list, b)
	}
	last := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "z"}}
	last.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	all := newBudgets(append(list, last))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Labels: map[string]string{"app": "x", "more": "y"}}}
	near := all.near(pod)
	if n := valuesIn(near); n > mostValues || len(near) != 31 {
		t.Errorf("%d budgets with %d values are looked at", len(near), n)
	}
	info, err := cluster.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	if violating, _ := all.part([]fwk.PodInfo{info}); len(violating) != 1 {
		t.Error("the budget that allows nothing does not count")
	}
}
