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
