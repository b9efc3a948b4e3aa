package defaultpreemption

import (
	"cmp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	fwk "k8s.io/kube-scheduler/framework"
)

// mostBudgets is how many budgets are looked at for one victim, and mostValues how many values their selectors have
// together. Its namespace may have any number that select everything, each with as many values as fit into an object,
// and whoever needs the room would wait until its attempt has no time left.
const (
	mostBudgets = 100
	mostValues  = 2000
)

// budgets are those of the cluster by one label that they want, or by none. There may be thousands, which are asked
// about each victim on each node: each is read once, and only if a victim has the label.
type budgets map[wanted][]*budget

// wanted is a label in a namespace; without a name it is of budgets that want none.
type wanted struct{ namespace, name, value string }

// budget is one of them with what it selects.
type budget struct {
	object   *policyv1.PodDisruptionBudget
	values   int // of the selector
	selector func() labels.Selector
}

func newBudgets(all []*policyv1.PodDisruptionBudget) budgets {
	by := budgets{}
	for _, b := range all {
		want := wanted{namespace: b.Namespace}
		if b.Spec.Selector != nil {
			for name, value := range b.Spec.Selector.MatchLabels {
				// Any of them does, so that it is the same one for the same selector.
				if want.name == "" || name < want.name {
					want.name, want.value = name, value
				}
			}
		}
		by[want] = append(by[want], &budget{b, valuesOf(b.Spec.Selector), sync.OnceValue(func() labels.Selector {
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil || selector.Empty() {
				return labels.Nothing()
			}
			return selector
		})})
	}
	for want, some := range by {
		if len(some) > mostBudgets || valuesIn(some) > mostValues {
			// It is not to be others each time that are left out.
			slices.SortFunc(some, func(a, b *budget) int { return cmp.Compare(a.object.Name, b.object.Name) })
			by[want] = within(nil, some)
		}
	}
	return by
}

// within adds as many of some budgets to others as are looked at.
func within(found, some []*budget) []*budget {
	left := mostValues - valuesIn(found)
	for _, b := range some {
		if len(found) < mostBudgets && b.values <= left {
			found, left = append(found, b), left-b.values
		}
	}
	return found
}

func valuesOf(s *metav1.LabelSelector) int {
	n := 0
	if s != nil {
		for i := range s.MatchExpressions {
			n += 1 + len(s.MatchExpressions[i].Values)
		}
		n += len(s.MatchLabels)
	}
	return n
}

func valuesIn(all []*budget) int {
	n := 0
	for _, b := range all {
		n += b.values
	}
	return n
}

// part tells pods whose end breaks a budget, if all before them in the list end, too.
func (all budgets) part(pods []fwk.PodInfo) (violating, others []fwk.PodInfo) {
	taken := map[*budget]int32{}
	for _, p := range pods {
		breaks := false
		for _, b := range all.near(p.GetPod()) {
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

// near are the budgets that may cover a pod.
func (all budgets) near(pod *corev1.Pod) []*budget {
	found := slices.Clip(all[wanted{namespace: pod.Namespace}])
	for name, value := range pod.Labels {
		if some := all[wanted{pod.Namespace, name, value}]; len(some) > 0 {
			found = within(found, some)
		}
	}
	return found
}

func (b *budget) covers(pod *corev1.Pod) bool {
	if len(pod.Labels) == 0 || !b.selector().Matches(labels.Set(pod.Labels)) {
		return false
	}
	_, already := b.object.Status.DisruptedPods[pod.Name]
	return !already
}
