package selector

import (
	"math/rand/v2"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestSelects has selectors that are not read first select what those do that are.
func TestSelects(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	words := []string{"a", "b", "c"}
	some := func() []string {
		var all []string
		for range 1 + r.IntN(2) {
			all = append(all, words[r.IntN(3)])
		}
		return all
	}
	pairs := func(most int) map[string]string {
		all := map[string]string{}
		for range r.IntN(most + 1) {
			all[words[r.IntN(3)]] = words[r.IntN(3)]
		}
		return all
	}
	for range 20_000 {
		s := &metav1.LabelSelector{MatchLabels: pairs(1)}
		for range r.IntN(3) {
			e := metav1.LabelSelectorRequirement{Key: words[r.IntN(3)]}
			switch r.IntN(4) {
			case 0:
				e.Operator, e.Values = metav1.LabelSelectorOpIn, some()
			case 1:
				e.Operator, e.Values = metav1.LabelSelectorOpNotIn, some()
			case 2:
				e.Operator = metav1.LabelSelectorOpExists
			case 3:
				e.Operator = metav1.LabelSelectorOpDoesNotExist
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
		if r.IntN(20) == 0 {
			s = nil
		}
		read, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		set := pairs(3)
		if got, want := Selects(s, set), read.Matches(labels.Set(set)); got != want {
			t.Fatalf("%v selects %v: %t, want %t", s, set, got, want)
		}
	}
}
