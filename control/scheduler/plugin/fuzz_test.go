package plugin_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
)

// FuzzSelectors gives plugins pods that no API server would take. They are turned away, and told which field is wrong.
func FuzzSelectors(f *testing.F) {
	f.Add("app", "In", "web", "zone", int32(1), int32(1), uint8(255))
	f.Add("app", "Exists", "web", "", int32(0), int32(-1), uint8(255))
	f.Add("a b", "In", "\x00", "zone", int32(-1), int32(0), uint8(255))
	f.Add("app", "is", "web", "zone", int32(1), int32(1<<30), uint8(255))
	f.Add("zone", "Gt", "x", "kubernetes.io/hostname", int32(1<<31-1), int32(101), uint8(1))
	f.Fuzz(func(t *testing.T, key, operator, value, topology string, skew, weight int32, which uint8) {
		pod := hostile(key, operator, value, topology, skew, weight, which)
		other := pod.DeepCopy()
		other.Name, other.Spec.NodeName = "other", "a1"
		w := newWorld(nodesOf(t, []string{a1, b1, x1}), nil, nsOf(t, `{metadata: {name: default}}`))
		if _, err := cluster.NewPodInfo(other); err == nil {
			w = w.with(w.nodes, []*corev1.Pod{other})
		}
		for _, make := range []factory{nodeaffinity.New, interpodaffinity.New, podtopologyspread.New} {
			p := make1(t, make, nil, w)
			for _, s := range walk(t, p, w, pod) {
				if m := s.Message(); (s.IsError() || strings.Contains(m, "parse ")) && !strings.Contains(m, "spec.") && !strings.Contains(m, "nodeSelectorTerms[") {
					t.Errorf("%s names no field: %s", p.Name(), m)
				}
			}
		}
	})
}

// hostile is a pod with a selector in the places that which has bits of.
func hostile(key, operator, value, topology string, skew, weight int32, which uint8) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "new", Namespace: "default", UID: "u", Labels: map[string]string{key: value}}}
	selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: key, Operator: metav1.LabelSelectorOperator(operator), Values: []string{value}},
	}}
	nodes := corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOperator(operator), Values: []string{value}}},
		MatchFields:      []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOperator(operator), Values: []string{value}}},
	}
	term := corev1.PodAffinityTerm{TopologyKey: topology, LabelSelector: selector}
	if which&1 != 0 {
		term.NamespaceSelector = selector
	}
	weighted := []corev1.WeightedPodAffinityTerm{{Weight: weight, PodAffinityTerm: term}}
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}, PodAntiAffinity: &corev1.PodAntiAffinity{}, NodeAffinity: &corev1.NodeAffinity{}}
	a := p.Spec.Affinity
	if which&2 != 0 {
		a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{term}
	}
	if which&4 != 0 {
		a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{term}
	}
	if which&8 != 0 {
		a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = weighted
	}
	if which&16 != 0 {
		a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = weighted
	}
	if which&32 != 0 {
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{nodes}}
	}
	if which&64 != 0 {
		a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: weight, Preference: nodes}}
	}
	for _, action := range []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway} {
		if which&128 != 0 {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
				TopologyKey: topology, MaxSkew: skew, MinDomains: &weight, WhenUnsatisfiable: action, LabelSelector: selector,
				MatchLabelKeys: []string{key, topology},
			})
		}
	}
	return p
}

// walk takes a pod through all phases of a plugin, and has what is not success.
func walk(t *testing.T, p fwk.Plugin, w *world, pod *corev1.Pod) []*fwk.Status {
	state, nodes := cycle.NewState(), w.infos(t)
	var bad []*fwk.Status
	ok := func(s *fwk.Status) bool {
		if !s.IsSuccess() && !s.IsSkip() {
			bad = append(bad, s)
		}
		return s.IsSuccess()
	}
	if _, s := p.(fwk.PreFilterPlugin).PreFilter(t.Context(), state, pod, nodes); ok(s) {
		for _, n := range nodes {
			ok(p.(fwk.FilterPlugin).Filter(t.Context(), state, pod, n))
		}
	}
	if ok(p.(fwk.PreScorePlugin).PreScore(t.Context(), state, pod, nodes)) {
		var list fwk.NodeScoreList
		for _, n := range nodes {
			score, s := p.(fwk.ScorePlugin).Score(t.Context(), state, pod, n)
			ok(s)
			list = append(list, fwk.NodeScore{Name: n.Node().Name, Score: score})
		}
		ok(p.(fwk.ScorePlugin).ScoreExtensions().NormalizeScore(t.Context(), state, pod, list))
	}
	if s, ok := p.(fwk.SignPlugin); ok {
		s.SignPod(t.Context(), pod)
	}
	events, _ := p.(fwk.EnqueueExtensions).EventsToRegister(t.Context())
	for _, e := range events {
		objects := []any{pod, pod}
		if e.Event.Resource == fwk.Node {
			objects = []any{w.nodes[0], w.nodes[1]}
		}
		if e.QueueingHintFn != nil {
			e.QueueingHintFn(klog.Background(), pod, objects[0], objects[1])
		}
	}
	return bad
}
