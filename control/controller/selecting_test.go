package controller

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-node/berth/control/selector"
)

// TestSelecting has random selectors be found by random labels, just those that select them.
func TestSelecting(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	budgets := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Policy().V1().PodDisruptionBudgets().Informer()
	of := func(b *policyv1.PodDisruptionBudget) *metav1.LabelSelector { return b.Spec.Selector }
	s, err := NewSelecting(budgets, of)
	if err != nil {
		t.Fatal(err)
	}
	some := func(most int) map[string]string {
		all := map[string]string{}
		for range random.IntN(most + 1) {
			all[fmt.Sprint("k", random.IntN(5))] = fmt.Sprint(random.IntN(2))
		}
		return all
	}
	for i := range 300 {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("n", i%2), Name: fmt.Sprint(i)}}
		if i%20 > 0 {
			b.Spec.Selector = &metav1.LabelSelector{MatchLabels: some(4)}
		}
		if i%3 == 0 && b.Spec.Selector != nil {
			b.Spec.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "k1", Operator: metav1.LabelSelectorOpDoesNotExist}}
		}
		if err := budgets.GetIndexer().Add(b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		has := some(5)
		if i%10 == 0 {
			for j := range 30 {
				has[fmt.Sprint("more", j)] = "x"
			}
		}
		var got, want []string
		for o := range s.All("n1", has) {
			got = append(got, o.GetName())
		}
		for _, o := range budgets.GetIndexer().List() {
			if b, ok := o.(*policyv1.PodDisruptionBudget); ok && b.Namespace == "n1" && selector.Selects(b.Spec.Selector, has) {
				want = append(want, b.Name)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("of %v they are %v, not %v", has, got, want)
		}
	}
}

// TestManyServices has a pod of one of thousands of services change: nobody asks the others.
func TestManyServices(t *testing.T) {
	all := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Services().Informer()
	services, err := NewServices(all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i)}}
		if i > 0 {
			s.Spec.Selector = map[string]string{"app": fmt.Sprint(i), "of": "all"}
		}
		if err := all.GetIndexer().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(version, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: "p", ResourceVersion: version, Labels: map[string]string{"app": app, "of": "all", "more": "x"},
		}}
	}
	if keys := services.Of(pod("1", "5"), nil); len(keys) != 1 || keys[0].Name != "5" {
		t.Errorf("they are %v", keys)
	}
	if keys := services.Of(pod("1", "5"), pod("2", "6")); len(keys) != 2 {
		t.Errorf("they are %v", keys)
	}
	if keys := services.Of(pod("1", "5"), pod("2", "5")); len(keys) != 0 {
		t.Errorf("they are %v", keys)
	}
	asked := 0
	for range services.by.asked("n", pod("1", "5").Labels) {
		asked++
	}
	if asked > 1 {
		t.Errorf("%d services are asked", asked)
	}
}
