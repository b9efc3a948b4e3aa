package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// workload is what a scheduler is given to do: nodes, pods that have one before, and pods whose binding is measured.
// Numbers, labels and what pods ask for are those of the workload of scheduler_perf of the same sense, and so is the
// rate in pods a second below which Kubernetes takes its own scheduler for broken.
type workload struct {
	name                string
	nodes, before, pods int
	threshold           float64
	zones               []string
	node                func(i int, n *corev1.Node)
	first, measured     func(i int, p *corev1.Pod)
	// spaces are further namespaces, with a label that pods select them by.
	spaces int
	// service selects the pods that are measured.
	service bool
	// disturbs is made five times a second meanwhile.
	disturbs func(p *corev1.Pod)
}

const (
	one, other = "sched-0", "sched-1"
	thousands  = 5000
)

// workloads are those that are known; the first is measured where none is named.
func workloads() []workload {
	moons, zone := []string{"moon-1", "moon-2", "moon-3"}, []string{"zone1"}
	anti := inBoth("green", corev1.LabelHostname, required, apart)
	green := func(_ int, p *corev1.Pod) { p.Namespace, p.Labels = other, color("green") }
	near := inBoth("blue", corev1.LabelTopologyZone, required, together)
	likes := inBoth("red", corev1.LabelHostname, preferred, together)
	dislikes := inBoth("yellow", corev1.LabelHostname, preferred, apart)
	zoned, spread := nodeAffinity(corev1.LabelTopologyZone, zone[0], "zone2"), spreads(corev1.DoNotSchedule)
	return []workload{
		{name: "basic", nodes: thousands, before: 1000, pods: 10_000, threshold: 680},
		{name: "daemonset", nodes: 15_000, pods: 30_000, threshold: 1100, node: large, measured: pinned},
		{name: "anti", nodes: thousands, before: 1000, pods: 2000, threshold: 60, first: anti, measured: anti},
		{name: "matchinganti", nodes: thousands, before: 1000, pods: 5000, threshold: 595, first: anti, measured: green},
		{name: "affinity", nodes: thousands, before: 5000, pods: 5000, threshold: 35, zones: zone, first: near, measured: near},
		{name: "preferred", nodes: thousands, before: 5000, pods: 5000, threshold: 90, first: likes, measured: likes},
		{name: "preferredanti", nodes: thousands, before: 5000, pods: 5000, threshold: 90, first: dislikes, measured: dislikes},
		{name: "nodeaffinity", nodes: thousands, before: 5000, pods: 10_000, threshold: 220, zones: zone, first: zoned, measured: zoned},
		{name: "mixed", nodes: thousands, before: 10_000, pods: 5000, threshold: 140, zones: zone, first: inTurn(nil, near, anti, likes, dislikes)},
		selecting("antispaces", 6000, 4000, 2000, 24, nil, byLabel("green", corev1.LabelHostname, required, apart)),
		selecting("preferredantispaces", thousands, 4000, 2000, 55, nil, byLabel("green", corev1.LabelHostname, preferred, apart)),
		selecting("affinityspaces", thousands, 5000, 2000, 35, zone, byLabel("blue", corev1.LabelTopologyZone, required, together)),
		selecting("preferredspaces", thousands, 5000, 5000, 90, nil, byLabel("red", corev1.LabelHostname, preferred, together)),
		{name: "spread", nodes: thousands, before: 5000, pods: 5000, threshold: 460, zones: moons, measured: spread},
		{name: "preferredspread", nodes: thousands, before: 5000, pods: 5000, threshold: 340, zones: moons, measured: spreads(corev1.ScheduleAnyway)},
		{name: "defaultspread", nodes: thousands, before: 5000, pods: 50_000, threshold: 160, zones: moons, service: true, measured: light},
		{name: "taints", nodes: thousands, pods: 4000, threshold: 270, node: tainted, measured: spreadsOverNodes},
		{name: "unschedulable", nodes: thousands, before: 20_000, pods: 10_000, threshold: 600, disturbs: needs("9")},
		{name: "preemption", nodes: thousands, before: 20_000, pods: 5000, threshold: 570, first: small("900m"), disturbs: needs("3")},
	}
}

func selecting(name string, nodes, before, pods int, threshold float64, zones []string, how func(int, *corev1.Pod)) workload {
	const spaces = 100
	return workload{
		name: name, nodes: nodes, before: before, pods: pods, threshold: threshold, zones: zones, spaces: spaces,
		first:    func(i int, p *corev1.Pod) { how(i, p); p.Namespace = fmt.Sprint("space-", i%spaces) },
		measured: func(i int, p *corev1.Pod) { how(i, p); p.Namespace = "space-0" },
	}
}

func color(name string) map[string]string { return map[string]string{"color": name} }

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// atMost is the workload with so many pods, and with nodes and pods before in proportion: with fewer nodes alone, pods
// that are apart would have no room. 0 leaves it as it is.
func (w workload) atMost(pods int) workload {
	if pods <= 0 || pods >= w.pods {
		return w
	}
	w.nodes, w.before, w.pods = w.nodes*pods/w.pods, w.before*pods/w.pods, pods
	return w
}

// title is what a rate of a workload is shown as.
func (w workload) title(of string) string {
	return fmt.Sprintf("%s: %s (more is better; Kubernetes' threshold: %g)", w.name, of, w.threshold)
}

// node is a simulated one. No agent has it: what is bound to it stays as it is.
func (w workload) makeNode(i int) *corev1.Node {
	name := fmt.Sprint("node-", i)
	room := amounts("4", "32Gi")
	room[corev1.ResourcePods] = resource.MustParse("110")
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if len(w.zones) > 0 {
		n.Labels[corev1.LabelTopologyZone] = w.zones[i%len(w.zones)]
	}
	if w.node != nil {
		w.node(i, n)
	}
	return n
}

// makePod is one that asks for little, changed by what the workload is about.
func makePod(name string, i int, how func(int, *corev1.Pod)) *corev1.Pod {
	ask := amounts("100m", "500Mi")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: one, Name: fmt.Sprint(name, i)},
		Spec: corev1.PodSpec{AutomountServiceAccountToken: new(false), Containers: []corev1.Container{{
			Name: "pause", Image: "registry.example.com/pause:1", Ports: []corev1.ContainerPort{{ContainerPort: 80}},
			Resources: corev1.ResourceRequirements{Requests: ask, Limits: ask},
		}}},
	}
	if how != nil {
		how(i, p)
	}
	return p
}

func required(terms ...corev1.PodAffinityTerm) ([]corev1.PodAffinityTerm, []corev1.WeightedPodAffinityTerm) {
	return terms, nil
}

func preferred(terms ...corev1.PodAffinityTerm) ([]corev1.PodAffinityTerm, []corev1.WeightedPodAffinityTerm) {
	return nil, []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: terms[0]}}
}

type (
	strength  func(...corev1.PodAffinityTerm) ([]corev1.PodAffinityTerm, []corev1.WeightedPodAffinityTerm)
	direction func([]corev1.PodAffinityTerm, []corev1.WeightedPodAffinityTerm) *corev1.Affinity
)

func together(must []corev1.PodAffinityTerm, may []corev1.WeightedPodAffinityTerm) *corev1.Affinity {
	return &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: must, PreferredDuringSchedulingIgnoredDuringExecution: may,
	}}
}

func apart(must []corev1.PodAffinityTerm, may []corev1.WeightedPodAffinityTerm) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: must, PreferredDuringSchedulingIgnoredDuringExecution: may,
	}}
}

// inBoth is of pods to those of a color in both namespaces; the first are in one, the measured in the other.
func inBoth(name, key string, how strength, to direction) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Labels = color(name)
		p.Spec.Affinity = to(how(corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{MatchLabels: color(name)}, TopologyKey: key, Namespaces: []string{one, other},
		}))
	}
}

// byLabel is of pods to those of a color in all namespaces of a label.
func byLabel(name, key string, how strength, to direction) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Labels = color(name)
		p.Spec.Affinity = to(how(corev1.PodAffinityTerm{
			LabelSelector: &metav1.LabelSelector{MatchLabels: color(name)}, TopologyKey: key,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: spaceLabels()},
		}))
	}
}

func spaceLabels() map[string]string { return map[string]string{"team": "devops"} }

func inTurn(all ...func(int, *corev1.Pod)) func(int, *corev1.Pod) {
	return func(i int, p *corev1.Pod) {
		if how := all[i%len(all)]; how != nil {
			how(i, p)
		}
	}
}

func nodeAffinity(key string, values ...string) func(int, *corev1.Pod) {
	return selects(corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values},
	}})
}

func selects(term corev1.NodeSelectorTerm) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}},
		}}
	}
}

// pinned are pods as those of a DaemonSet, all of which go to the first node.
func pinned(i int, p *corev1.Pod) {
	light(i, p)
	selects(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"node-0"}},
	}})(i, p)
}

func large(i int, n *corev1.Node) {
	if i == 0 {
		n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("90000")
	}
}

// light are pods that ask for nothing.
func light(_ int, p *corev1.Pod) {
	p.Labels, p.Spec.Containers[0].Resources = map[string]string{"app": "light"}, corev1.ResourceRequirements{}
}

func spreads(otherwise corev1.UnsatisfiableConstraintAction) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) { spreadBy(p, corev1.LabelTopologyZone, 5, otherwise) }
}

func spreadsOverNodes(_ int, p *corev1.Pod) {
	spreadBy(p, corev1.LabelHostname, 1, corev1.DoNotSchedule)
	c := &p.Spec.TopologySpreadConstraints[0]
	c.NodeAffinityPolicy, c.NodeTaintsPolicy = new(corev1.NodeInclusionPolicyHonor), new(corev1.NodeInclusionPolicyHonor)
}

func spreadBy(p *corev1.Pod, key string, skew int32, otherwise corev1.UnsatisfiableConstraintAction) {
	p.Labels = color("blue")
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: skew, TopologyKey: key, WhenUnsatisfiable: otherwise, LabelSelector: &metav1.LabelSelector{MatchLabels: color("blue")},
	}}
}

func tainted(i int, n *corev1.Node) {
	if i%5 == 0 {
		n.Spec.Taints = []corev1.Taint{{Key: "foo", Value: "bar", Effect: corev1.TaintEffectNoSchedule}}
	}
}

// needs is a pod before others that asks for so many processors.
func needs(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.PriorityClassName = important
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts(cpu, "500Mi")}
	}
}

func small(cpu string) func(int, *corev1.Pod) {
	return func(_ int, p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts(cpu, "500Mi")}
	}
}
