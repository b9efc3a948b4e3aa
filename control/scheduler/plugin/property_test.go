package plugin_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
)

// chance makes random clusters, small so that things meet.
type chance struct{ *rand.Rand }

func (c chance) of(list ...string) string { return list[c.IntN(len(list))] }

func (c chance) one(in int) bool { return c.IntN(in) == 0 }

func (c chance) node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{}}}
	if !c.one(8) {
		n.Labels["zone"] = c.of("a", "b", "c")
	}
	if !c.one(8) {
		n.Labels["host"] = n.Name
	}
	if c.one(3) {
		n.Labels["disk"] = "ssd"
	}
	if c.one(4) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

func (c chance) selector() *metav1.LabelSelector {
	switch c.IntN(8) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{c.of("x", "y")}},
		}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": c.of("x", "y")}}
}

func (c chance) term() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: c.of("zone", "host"), LabelSelector: c.selector()}
	switch c.IntN(6) {
	case 0:
		t.Namespaces = []string{c.of("one", "two")}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": c.of("one", "two")}}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{}
	}
	return t
}

func (c chance) terms(most int) []corev1.PodAffinityTerm {
	var all []corev1.PodAffinityTerm
	for range c.IntN(most + 1) {
		all = append(all, c.term())
	}
	return all
}

func (c chance) weighted() []corev1.WeightedPodAffinityTerm {
	var all []corev1.WeightedPodAffinityTerm
	for range c.IntN(3) {
		all = append(all, corev1.WeightedPodAffinityTerm{Weight: int32(1 + c.IntN(100)), PodAffinityTerm: c.term()})
	}
	return all
}

func (c chance) pod(name, on string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: c.of("one", "two"), Labels: map[string]string{"app": c.of("x", "y"), "v": c.of("1", "2")},
	}}
	p.UID = uidOf(p)
	p.Spec.NodeName = on
	if c.one(2) {
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: c.terms(1), PreferredDuringSchedulingIgnoredDuringExecution: c.weighted(),
			},
			PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: c.terms(2), PreferredDuringSchedulingIgnoredDuringExecution: c.weighted(),
			},
		}
	}
	if on != "" && c.one(10) {
		p.DeletionTimestamp = &metav1.Time{}
	}
	if c.one(4) {
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	}
	if c.one(2) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	}
	policies := []corev1.NodeInclusionPolicy{corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore}
	for range c.IntN(3) {
		s := corev1.TopologySpreadConstraint{
			TopologyKey: c.of("zone", "host"), MaxSkew: int32(1 + c.IntN(2)), LabelSelector: c.selector(),
			WhenUnsatisfiable: corev1.DoNotSchedule, NodeAffinityPolicy: &policies[c.IntN(2)], NodeTaintsPolicy: &policies[c.IntN(2)],
		}
		if c.one(3) {
			s.MinDomains = new(int32(1 + c.IntN(4)))
		}
		if c.one(3) && s.LabelSelector != nil {
			s.MatchLabelKeys = []string{"v"}
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, s)
	}
	return p
}

// histories is how many, and of which seed.
func histories(t *testing.T) (int, uint64) {
	n, seed := 2000, rand.Uint64()
	if testing.Short() {
		n /= 20
	}
	if s := os.Getenv("BERTH_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	if s := os.Getenv("BERTH_TEST_HISTORIES"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	t.Logf("BERTH_TEST_SEED=%d", seed)
	return n, seed
}

// TestIncremental takes pods away from nodes and adds others, by way of preemption's and nominated pods' extensions, in
// clones as they do. What filters then say is what they say of a cluster that was so from the start, and what the
// documentation says of it.
func TestIncremental(t *testing.T) {
	n, seed := histories(t)
	for i := range n {
		c := chance{rand.New(rand.NewPCG(seed, uint64(i)))}
		var nodes []*corev1.Node
		for k := range 1 + c.IntN(6) {
			nodes = append(nodes, c.node(k))
		}
		var pods []*corev1.Pod
		for k := range c.IntN(10) {
			pods = append(pods, c.pod(fmt.Sprintf("p%d", k), nodes[c.IntN(len(nodes))].Name))
		}
		w := newWorld(nodes, pods, nsOf(t, `{metadata: {name: one, labels: {team: one}}}`), nsOf(t, `{metadata: {name: two, labels: {team: two}}}`))
		pod := c.pod("new", "")
		for _, f := range []factory{interpodaffinity.New, podtopologyspread.New} {
			if !incremental(t, c, make1(t, f, nil, w).(both), w, pod) {
				t.Fatalf("history %d", i)
			}
		}
	}
}

type both interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
}

func incremental(t *testing.T, c chance, p both, w *world, pod *corev1.Pod) bool {
	first := cycle.NewState()
	if _, s := p.PreFilter(t.Context(), first, pod, w.infos(t)); s.IsSkip() {
		return true
	} else if !s.IsSuccess() {
		t.Fatal(s.AsError())
	}
	before := filtered(t, p, first, w, pod)
	if want := reference(t, p.Name(), w, pod); show(before) != show(want) {
		t.Errorf("%s of %s\ngot  %s\nwant %s", p.Name(), show(described(pod)), show(before), show(want))
		return false
	}
	state := first.Clone()
	now := w
	for k := range 1 + c.IntN(4) {
		pods := append([]*corev1.Pod(nil), now.pods...)
		var changed *corev1.Pod
		change := p.PreFilterExtensions().AddPod
		if len(pods) > 0 && c.one(2) {
			at := c.IntN(len(pods))
			changed, change = pods[at], p.PreFilterExtensions().RemovePod
			pods = append(pods[:at], pods[at+1:]...)
		} else {
			changed = c.pod(fmt.Sprintf("more%d", k), w.nodes[c.IntN(len(w.nodes))].Name)
			pods = append(pods, changed)
		}
		now = w.with(w.nodes, pods)
		info, err := now.snapshot.NodeInfos().Get(changed.Spec.NodeName)
		if err != nil {
			t.Fatal(err)
		}
		one, err := cluster.NewPodInfo(changed)
		if err != nil {
			t.Fatal(err)
		}
		if s := change(t.Context(), state, pod, one, info); !s.IsSuccess() {
			t.Fatal(s.AsError())
		}
		if c.one(2) {
			state = state.Clone()
		}
	}
	got, want := filtered(t, p, state, now, pod), reference(t, p.Name(), now, pod)
	if show(got) != show(want) {
		t.Errorf("%s changed\ngot  %s\nwant %s", p.Name(), show(got), show(want))
		return false
	}
	if again := filtered(t, p, first, w, pod); show(again) != show(before) {
		t.Errorf("%s: a clone changed what it is of\ngot  %s\nwant %s", p.Name(), show(again), show(before))
		return false
	}
	return true
}

func described(p *corev1.Pod) map[string]string {
	return map[string]string{"labels": fmt.Sprint(p.Labels), "affinity": fmt.Sprint(p.Spec.Affinity), "spread": fmt.Sprint(p.Spec.TopologySpreadConstraints)}
}

func filtered(t *testing.T, p fwk.FilterPlugin, state fwk.CycleState, w *world, pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, info := range w.infos(t) {
		if s := p.Filter(t.Context(), state, pod, info); !s.IsSuccess() {
			out[info.Node().Name] = verdict(s)
		}
	}
	return out
}

// reference says of each node what the documentation does, the slow way: every pod and every node for every node.
func reference(t *testing.T, name string, w *world, pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, n := range w.nodes {
		why := ""
		if name == interpodaffinity.Name {
			why = affinityReference(t, w, pod, n)
		} else {
			why = spreadReference(t, w, pod, n)
		}
		if why != "" {
			out[n.Name] = why
		}
	}
	return out
}

func selects(t *testing.T, s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(set))
}

// means says whether a term of one pod means another. The label team of a namespace is its name here.
func means(t *testing.T, term corev1.PodAffinityTerm, of, other *corev1.Pod) bool {
	in := term.NamespaceSelector != nil && selects(t, term.NamespaceSelector, map[string]string{"team": other.Namespace})
	for _, ns := range term.Namespaces {
		in = in || ns == other.Namespace
	}
	if len(term.Namespaces) == 0 && term.NamespaceSelector == nil {
		in = of.Namespace == other.Namespace
	}
	return in && selects(t, term.LabelSelector, other.Labels)
}

func (w *world) node(name string) *corev1.Node {
	for _, n := range w.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// together says whether two nodes are in one domain.
func together(a, b *corev1.Node, topology string) bool {
	x, in := a.Labels[topology]
	y, too := b.Labels[topology]
	return in && too && x == y
}

func affinityReference(t *testing.T, w *world, pod *corev1.Pod, node *corev1.Node) string {
	near, away := fwk.GetPodAffinityTerms(pod.Spec.Affinity), fwk.GetPodAntiAffinityTerms(pod.Spec.Affinity)
	all := func(other *corev1.Pod) bool {
		for _, term := range near {
			if !means(t, term, pod, other) {
				return false
			}
		}
		return true
	}
	anywhere, there := false, true
	for _, term := range near {
		if _, in := node.Labels[term.TopologyKey]; !in {
			return noneNear
		}
		found := false
		for _, p := range w.pods {
			on := w.node(p.Spec.NodeName)
			if !all(p) {
				continue
			}
			_, in := on.Labels[term.TopologyKey]
			anywhere = anywhere || in
			found = found || together(on, node, term.TopologyKey)
		}
		there = there && found
	}
	if !there && (anywhere || !all(pod)) {
		return noneNear
	}
	for _, p := range w.pods {
		for _, term := range away {
			if means(t, term, pod, p) && together(w.node(p.Spec.NodeName), node, term.TopologyKey) {
				return someNear
			}
		}
	}
	for _, p := range w.pods {
		for _, term := range fwk.GetPodAntiAffinityTerms(p.Spec.Affinity) {
			if means(t, term, p, pod) && together(w.node(p.Spec.NodeName), node, term.TopologyKey) {
				return existing
			}
		}
	}
	return ""
}

func spreadReference(t *testing.T, w *world, pod *corev1.Pod, node *corev1.Node) string {
	inAll := func(n *corev1.Node) bool {
		for _, c := range pod.Spec.TopologySpreadConstraints {
			if _, in := n.Labels[c.TopologyKey]; !in {
				return false
			}
		}
		return true
	}
	for _, c := range pod.Spec.TopologySpreadConstraints {
		counts := func(p *corev1.Pod) bool {
			for _, k := range c.MatchLabelKeys {
				if p.Labels[k] != pod.Labels[k] {
					return false
				}
			}
			return selects(t, c.LabelSelector, p.Labels)
		}
		if _, in := node.Labels[c.TopologyKey]; !in {
			return skewNoLabel
		}
		all := c.LabelSelector != nil && len(c.LabelSelector.MatchLabels)+len(c.LabelSelector.MatchExpressions)+len(c.MatchLabelKeys) == 0
		domains := map[string]int{}
		for _, n := range w.nodes {
			if !inAll(n) || *c.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor && !selects(t, &metav1.LabelSelector{MatchLabels: pod.Spec.NodeSelector}, n.Labels) ||
				*c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor && len(n.Spec.Taints) > 0 && len(pod.Spec.Tolerations) == 0 {
				continue
			}
			domains[n.Labels[c.TopologyKey]] += 0
			for _, p := range w.pods {
				if p.Spec.NodeName == n.Name && p.Namespace == pod.Namespace && p.DeletionTimestamp == nil && !all && counts(p) {
					domains[n.Labels[c.TopologyKey]]++
				}
			}
		}
		least, first := 0, true
		for _, n := range domains {
			if first || n < least {
				least, first = n, false
			}
		}
		if c.MinDomains != nil && len(domains) < int(*c.MinDomains) {
			least = 0
		}
		self := 0
		if counts(pod) {
			self = 1
		}
		if domains[node.Labels[c.TopologyKey]]+self-least > int(c.MaxSkew) {
			return skewed
		}
	}
	return ""
}
