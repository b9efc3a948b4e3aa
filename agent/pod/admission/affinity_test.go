package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
)

func TestAffinity(t *testing.T) {
	check := Affinity("n1", func() map[string]string { return map[string]string{"disk": "ssd", "rack": "7"} })
	term := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	required := func(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
	}
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		want   bool
	}{
		{"nothing asked", func(*corev1.Pod) {}, true},
		{"selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, true},
		{"another selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd", "rack": "8"} }, false},
		{"affinity", required(term("rack", corev1.NodeSelectorOpGt, "3")), true},
		{"one of two terms", required(term("rack", corev1.NodeSelectorOpIn, "1"), term("disk", corev1.NodeSelectorOpExists)), true},
		{"no term", required(term("rack", corev1.NodeSelectorOpNotIn, "7")), false},
		{"by name", required(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}},
		}}), true},
	} {
		pod := podtest.New("p")
		c.change(pod)
		v := check(&Request{Pod: pod})
		if (v == nil) != c.want || v != nil && (v.Reason != "NodeAffinity" || !v.Final) {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
}
