package defaultpreemption

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fwk "k8s.io/kube-scheduler/framework"
)

// budgets are those of the cluster by namespace. There may be thousands, which are asked about each victim on each
// node: each is read once, and only if a victim is in its namespace.
type budgets map[string][]*budget

// budget is one of them with what it selects.
type budget struct {
	object   *policyv1.PodDisruptionBudget
	selector func() labels.Selector
}

func newBudgets(all []*policyv1.PodDisruptionBudget) budgets {
	by := budgets{}
	for _, b := range all {
		by[b.Namespace] = append(by[b.Namespace], &budget{b, sync.OnceValue(func() labels.Selector {
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil || selector.Empty() {
				return labels.Nothing()
			}
			return selector
		})})
	}
	return by
}

// part tells pods whose end breaks a budget, if all before them in the list end, too.
func (all budgets) part(pods []fwk.PodInfo) (violating, others []fwk.PodInfo) {
	taken := map[*budget]int32{}
	for _, p := range pods {
		breaks := false
		for _, b := range all[p.GetPod().Namespace] {
			if !b.covers(p.GetPod()) {
				continue
			}
			taken[b]++
			breaks = breaks || taken[b] > b.object.Status.DisruptionsAllowed
		}
		if breaks {
			violating = append(violating, p)
		} else {
			others = append(others, p)
		}
	}
	return violating, others
}

func (b *budget) covers(pod *corev1.Pod) bool {
	if len(pod.Labels) == 0 || !b.selector().Matches(labels.Set(pod.Labels)) {
		return false
	}
	_, already := b.object.Status.DisruptedPods[pod.Name]
	return !already
}
