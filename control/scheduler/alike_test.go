package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/config"
	"github.com/berth-node/berth/control/scheduler/cycle"
	"github.com/berth-node/berth/control/scheduler/metrics"
	"github.com/berth-node/berth/control/scheduler/profile"
)

// history is a cluster to which things happen between one pod and the next.
type history struct {
	*bench

	t       *testing.T
	rand    *rand.Rand
	nodes   map[string]*corev1.Node
	placed  map[types.UID]*corev1.Pod
	version int
	used    func() int
}

func newHistory(t *testing.T, seed uint64, nodes int) *history {
	t.Helper()
	h := &history{
		bench: newBench(t, 0), t: t, rand: rand.New(rand.NewPCG(seed, seed)), nodes: map[string]*corev1.Node{}, placed: map[types.UID]*corev1.Pod{},
	}
	h.used = countUsed(t, h.s)
	for range nodes {
		h.addNode()
	}
	return h
}

func (h *history) chance(percent int) bool { return h.rand.IntN(100) < percent }

func (h *history) next() string {
	h.version++
	return fmt.Sprint(h.version)
}

func pick[T any](h *history, all ...T) T { return all[h.rand.IntN(len(all))] }

func (h *history) addNode() {
	name := "node-" + h.next()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: h.next(), Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: pick(h, "a", "b", "c"), "disk": pick(h, "ssd", "hdd"),
	}}}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(pick(h, "1", "2", "4")), corev1.ResourceMemory: resource.MustParse(pick(h, "2Gi", "8Gi")),
		corev1.ResourcePods: resource.MustParse(pick(h, "4", "110")),
	}
	if h.chance(30) {
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"big:1"}, SizeBytes: 700 << 20}}
	}
	if h.chance(20) {
		n.Spec.Taints = []corev1.Taint{{Key: "slow", Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	h.setNode(n)
}

func (h *history) setNode(n *corev1.Node) {
	n.ResourceVersion = h.next()
	h.nodes[n.Name] = n
	h.s.cache.SetNode(n)
}

// changeNode has one node be another way, or come or go.
func (h *history) changeNode() {
	n := h.nodes[pick(h, slices.Sorted(maps.Keys(h.nodes))...)].DeepCopy()
	switch h.rand.IntN(9) {
	case 0:
		n.Labels["disk"] = pick(h, "ssd", "hdd")
	case 1:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	case 2:
		n.Spec.Taints = []corev1.Taint{{Key: pick(h, "slow", "dear"), Effect: pick(h, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule)}}
	case 3:
		n.Spec.Taints = nil
	case 4:
		n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(pick(h, "1", "3", "6"))
	case 5:
		n.Status.Images = []corev1.ContainerImage{{Names: []string{pick(h, "big:1", "other:1")}, SizeBytes: 900 << 20}}
	case 6:
		if len(h.nodes) > fewNodes {
			delete(h.nodes, n.Name)
			h.s.cache.DeleteNode(n.Name)
			return
		}
	case 7:
		h.addNode()
		return
	}
	h.setNode(n)
}

// changePod has a pod that has a node be told of by the API, be another way, or be gone; or one come from elsewhere.
func (h *history) changePod() {
	if len(h.placed) == 0 || h.chance(10) {
		p := h.pod(h.rand.IntN(kindsOfHistory))
		p.Spec.NodeName = pick(h, slices.Sorted(maps.Keys(h.nodes))...)
		h.placed[p.UID] = p
		h.s.cache.SetPod(p)
		return
	}
	p := h.placed[pick(h, slices.Sorted(maps.Keys(h.placed))...)].DeepCopy()
	if h.chance(40) {
		delete(h.placed, p.UID)
		if h.chance(50) {
			h.s.cache.Forget(p.UID)
		}
		h.s.cache.DeletePod(p.UID)
		return
	}
	p.ResourceVersion = h.next()
	if h.chance(10) {
		p.Status.Phase = corev1.PodSucceeded
		delete(h.placed, p.UID)
	} else {
		h.placed[p.UID] = p
	}
	h.s.cache.SetPod(p)
}

func (h *history) changeNamespace() {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": pick(h, "x", "y")}}}
	if err := h.informers.Core().V1().Namespaces().Informer().GetIndexer().Add(ns); err != nil {
		h.t.Fatal(err)
	}
}

const kindsOfHistory = 21

// pod is a new one of a kind.
func (h *history) pod(kind int) *corev1.Pod {
	name, zero := "pod-"+h.next(), int32(0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: h.next(), Labels: map[string]string{"app": "a"}},
		Spec:       corev1.PodSpec{Priority: &zero, SchedulerName: config.DefaultScheduler, Containers: []corev1.Container{{Name: "c", Image: "big:1"}}},
	}
	c := &p.Spec.Containers[0]
	if kind%2 == 0 {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("100Mi")}
	}
	apps := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	switch kind {
	case 2:
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "big:1"})
	case 3:
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d", Image: "other:1"})
	case 4, 5:
		c.Ports = []corev1.ContainerPort{{HostPort: 80, Protocol: pick(h, corev1.ProtocolTCP, corev1.ProtocolUDP)}}
	case 6:
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	case 7:
		p.Spec.Tolerations = []corev1.Toleration{{Key: "slow", Operator: corev1.TolerationOpExists}, {Key: "dear", Operator: corev1.TolerationOpExists}}
	case 8, 9:
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: int32(kind), Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
			}}},
			{Weight: 5, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"hdd"}},
			}}},
		}}}
	case 10:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: apps, NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}},
		}}}
	case 11:
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{Weight: 7, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone, LabelSelector: apps}},
		}}}
	case 12:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{MaxSkew: 2, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: apps},
		}
	case 13:
		p.Labels = nil
	case 14:
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelTopologyZone, LabelSelector: apps},
		}}}
	case 15:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{Weight: 9, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: apps}},
		}}}
	case 16, 17:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{MaxSkew: 1 + int32(kind)%2*2, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: apps},
			{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: apps},
		}
	case 18:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: apps},
		}
	case 19:
		p.Labels = map[string]string{"app": "b"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "disk", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "c"}}},
		}}}
	case 20:
		p.Labels = map[string]string{"app": "c"}
	}
	return p
}

// countUsed has a scheduler count, and returns how many nodes it has chosen of those that were found for other pods.
func countUsed(t *testing.T, s *Scheduler) func() int {
	t.Helper()
	r := k8smetrics.NewKubeRegistry()
	s.metrics = metrics.New(r)
	return func() int {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "scheduler_batch_attempts_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetValue() == "hint_used" {
						return int(m.GetCounter().GetValue())
					}
				}
			}
		}
		return 0
	}
}

// place chooses a node for a pod, and looks whether it is what a look at all nodes comes to.
func (h *history) place(pod *corev1.Pod) (node string, alike bool) {
	s, p := h.s, h.s.profiles[config.DefaultScheduler]
	s.cache.Update(s.snapshot)
	for _, b := range s.alike.last {
		b.made = time.Now().Add(time.Hour) // however slow the machine is
	}
	var of *batch
	if i := slices.IndexFunc(s.alike.last, func(b *batch) bool { return b.signature == profile.SignFar(h.t.Context(), p, pod) }); i >= 0 {
		of = s.alike.last[i]
	}
	before := h.used()
	node, _, err := s.choose(h.t.Context(), p, cycle.NewState(), pod)
	if err != nil {
		h.t.Fatal(err)
	}
	alike = h.used() > before
	if alike {
		h.check(of, pod, node)
	}
	if node == "" {
		return node, alike
	}
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	info, err := cluster.NewPodInfo(bound)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := s.cache.Assume(info); err != nil {
		h.t.Fatal(err)
	}
	h.placed[bound.UID] = bound
	return node, alike
}

// check looks at all nodes the long way.
func (h *history) check(b *batch, pod *corev1.Pod, chosen string) {
	s, ctx, state := h.s, h.t.Context(), cycle.NewState()
	all, _ := s.snapshot.NodeInfos().List()
	only, _, status := b.profile.RunPreFilter(ctx, state, pod, all)
	if !status.IsSuccess() {
		h.t.Fatalf("pod is rejected: %v", status)
	}
	open := map[string]bool{}
	for i, n := range b.ranking.Nodes() {
		if !b.ranking.Barred(i) {
			open[n.Node().Name] = true
		}
	}
	var suit []fwk.NodeInfo
	all = slices.Clone(all)
	for _, n := range all {
		name := n.Node().Name
		suits := (only.AllNodes() || only.NodeNames.Has(name)) && b.profile.FilterNominated(ctx, state, pod, n).IsSuccess()
		switch {
		case suits && open[name]:
			suit = append(suit, n)
		case suits && b.extent.whole && !b.ranking.Has(name):
			h.t.Errorf("node %s suits, and is not among all that do", name)
		case suits && b.ranking.Has(name):
			h.t.Errorf("node %s suits, and is barred", name)
		case !suits && open[name]:
			h.t.Errorf("node %s is ranked, and does not suit", name)
		}
	}
	if len(suit) != len(open) {
		h.t.Fatalf("%d nodes are ranked, of which %d are there and suit", len(open), len(suit))
	}
	if status := b.profile.RunPreScorePlugins(ctx, state, pod, suit); !status.IsSuccess() {
		h.t.Fatal(status)
	}
	long, status := profile.Rank(ctx, b.profile, state, pod, suit)
	if !status.IsSuccess() {
		h.t.Fatal(status)
	}
	totals := map[string]int64{}
	for i, n := range suit {
		totals[n.Node().Name] = long.Totals()[i]
	}
	for i, n := range b.ranking.Nodes() {
		if name := n.Node().Name; open[name] && b.ranking.Totals()[i] != totals[name] {
			h.t.Errorf("node %s has the total %d, the long way %d", name, b.ranking.Totals()[i], totals[name])
		}
	}
	if top := slices.Max(long.Totals()); totals[chosen] != top {
		h.t.Errorf("node %s is chosen, whose total is %d, and the highest is %d", chosen, totals[chosen], top)
	}
}

// TestAlike has whatever happens in clusters happen between pods that are alike: each node that is chosen of those that
// were found for another pod is one that a look at all nodes could have chosen, and all totals are what they would be.
func TestAlike(t *testing.T) {
	histories, used, far, placed := 260, 0, 0, 0
	if testing.Short() {
		histories = 40
	}
	for seed := range histories {
		nodes := fewNodes + seed%40
		if seed%4 == 0 {
			nodes = 130 + seed%13*10 // a part of them is enough
		}
		h := newHistory(t, uint64(seed), nodes)
		h.changeNamespace()
		for range 12 {
			kind := h.rand.IntN(kindsOfHistory)
			for range 1 + h.rand.IntN(12) {
				pod := h.pod(kind)
				if _, alike := h.place(pod); alike {
					used++
					if profile.FarsightFor(h.s.profiles[config.DefaultScheduler], pod, false) != nil {
						far++
					}
				}
				placed++
				for h.chance(40) {
					h.changePod()
				}
				if h.chance(8) {
					h.changeNode()
				}
				if h.chance(2) {
					h.changeNamespace()
				}
			}
		}
		if t.Failed() {
			t.Fatalf("in history %d", seed)
		}
	}
	t.Logf("%d of %d pods were placed by what was found for others, of which others matter for %d", used, placed, far)
	if used < placed/4 || far < placed/25 {
		t.Errorf("only %d of %d pods were placed by what was found for others, of which others matter for %d", used, placed, far)
	}
}

// TestAlikeEnds is of what ends it that nodes which were found for a pod are chosen of for others.
func TestAlikeEnds(t *testing.T) {
	for name, ends := range map[string]func(h *history){
		"age": func(h *history) {
			for _, b := range h.s.alike.last {
				b.made = time.Now().Add(-2 * longestAlike)
			}
		},
		"another node": func(h *history) { h.addNode() },
		"room is kept for a pod": func(h *history) {
			p := h.pod(0)
			p.Status.NominatedNodeName = slices.Sorted(maps.Keys(h.nodes))[0]
			info, _ := cluster.NewPodInfo(p)
			h.s.shared.Nominator.AddNominatedPod(klog.Background(), info, nil)
		},
		"a pod with affinity": func(h *history) {
			p := h.pod(11)
			p.Spec.NodeName = slices.Sorted(maps.Keys(h.nodes))[0]
			h.s.cache.SetPod(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t, 1, 20)
			choose := func() bool {
				before := h.used()
				if _, _, err := h.s.choose(t.Context(), h.s.profiles[config.DefaultScheduler], cycle.NewState(), h.pod(0)); err != nil {
					t.Fatal(err)
				}
				return h.used() > before
			}
			choose()
			for _, b := range h.s.alike.last {
				b.made = time.Now().Add(time.Hour)
			}
			if !choose() {
				t.Fatal("the second pod is not placed by what was found for the first")
			}
			ends(h)
			if choose() {
				t.Error("the third pod is")
			}
		})
	}
}

// TestAlikeSpreads has a part of the nodes that were found have pods before others are looked for.
func TestAlikeSpreads(t *testing.T) {
	w := newBench(t, 1000)
	p := w.s.profiles[config.DefaultScheduler]
	used, on := countUsed(t, w.s), map[string]int{}
	for range 400 {
		w.s.cache.Update(w.s.snapshot)
		for _, b := range w.s.alike.last {
			b.made = time.Now().Add(time.Hour)
		}
		pod := w.pod()
		node, _, err := w.s.choose(t.Context(), p, cycle.NewState(), pod)
		if err != nil {
			t.Fatal(err)
		}
		pod.Spec.NodeName = node
		w.s.cache.SetPod(pod)
		on[node]++
	}
	if n := used(); n < 300 {
		t.Errorf("%d of 400 pods are placed by what was found for others", n)
	}
	for node, pods := range on {
		if pods > 1 {
			t.Errorf("node %s has %d pods, and 600 others have none", node, pods)
		}
	}
}
