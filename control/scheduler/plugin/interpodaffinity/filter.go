package interpodaffinity

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

const filterKey fwk.StateKey = "PreFilter" + Name

// near is where a pod may be for its own terms and those of others.
type near struct {
	terms     terms
	namespace labels.Set // the labels of the pod's
	self      bool       // the pod is what it wants to be near

	wanted   tallies // of pods that all of its terms mean to be near
	unwanted tallies // of pods that one of its terms means to be away from
	hostile  tallies // of pods that want to be away from it
	total    int64   // of the wanted
}

// Clone is for what preemption tries.
func (n *near) Clone() fwk.StateData {
	c := *n
	c.wanted, c.unwanted, c.hostile = n.wanted.clone(), n.unwanted.clone(), n.hostile.clone()
	return &c
}

// PreFilter counts the pods that matter, once for all nodes.
func (p *interPod) PreFilter(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	t, err := required(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if err := p.resolve(&t); err != nil {
		return nil, fwk.AsStatus(err)
	}
	n := &near{terms: t, namespace: p.labelsOf(pod.Namespace), self: matchesAll(t.near, pod)}
	hostiles := p.handle.SnapshotSharedLister().NodeInfos().HavePodsWithRequiredAntiAffinityList
	n.hostile, err = p.sum(ctx, &p.ledgers.hostile, meant{pod, n.namespace}, hostiles, func(info fwk.NodeInfo) tallies {
		return n.countHostile(pod, info)
	})
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	demands := len(t.near) > 0 || len(t.away) > 0
	if !demands && n.hostile.none() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	if err := p.countOwn(ctx, n); err != nil {
		return nil, fwk.AsStatus(err)
	}
	state.Write(filterKey, n)
	return nil, nil
}

// countOwn counts the pods that the pod's own terms mean.
func (p *interPod) countOwn(ctx context.Context, n *near) (err error) {
	all := p.handle.SnapshotSharedLister().NodeInfos().List
	if len(n.terms.near) > 0 {
		if n.wanted, err = p.sum(ctx, &p.ledgers.wanted, meaning(n.terms.near), all, n.countWanted); err != nil {
			return err
		}
		for i := range n.wanted {
			n.total += n.wanted[i].all
		}
	}
	if len(n.terms.away) > 0 {
		n.unwanted, err = p.sum(ctx, &p.ledgers.unwanted, meaning(n.terms.away), all, n.countUnwanted)
	}
	return err
}

func (n *near) countHostile(pod *corev1.Pod, info fwk.NodeInfo) tallies {
	var t tallies
	for _, other := range info.GetPodsWithRequiredAntiAffinity() {
		terms := other.GetRequiredAntiAffinityTerms()
		for i := range terms {
			if terms[i].Matches(pod, n.namespace) {
				t.count(terms[i].TopologyKey, info.Node().Labels, 1)
			}
		}
	}
	return t
}

func (n *near) countWanted(info fwk.NodeInfo) tallies {
	count := int64(0)
	for _, other := range info.GetPods() {
		if matchesAll(n.terms.near, other.GetPod()) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	var t tallies
	for i := range n.terms.near {
		t.count(n.terms.near[i].TopologyKey, info.Node().Labels, count)
	}
	return t
}

func (n *near) countUnwanted(info fwk.NodeInfo) tallies {
	var t tallies
	for i := range n.terms.away {
		term := &n.terms.away[i]
		if _, in := info.Node().Labels[term.TopologyKey]; !in {
			continue
		}
		count := int64(0)
		for _, other := range info.GetPods() {
			if term.Matches(other.GetPod(), nil) {
				count++
			}
		}
		if count > 0 {
			t.count(term.TopologyKey, info.Node().Labels, count)
		}
	}
	return t
}

// PreFilterExtensions follow pods that preemption takes away, and nominated ones that it adds.
func (p *interPod) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts one more on a node.
func (p *interPod) AddPod(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, info fwk.NodeInfo,
) *fwk.Status {
	return change(state, pod, other, info, 1)
}

// RemovePod counts one less on a node.
func (p *interPod) RemovePod(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, info fwk.NodeInfo,
) *fwk.Status {
	return change(state, pod, other, info, -1)
}

func change(state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, info fwk.NodeInfo, by int64) *fwk.Status {
	n, err := plugin.Read[*near](state, filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	n.change(pod, other, info.Node().Labels, by)
	return nil
}

func (n *near) change(pod *corev1.Pod, other fwk.PodInfo, labels map[string]string, by int64) {
	terms := other.GetRequiredAntiAffinityTerms()
	for i := range terms {
		if terms[i].Matches(pod, n.namespace) {
			n.hostile.change(terms[i].TopologyKey, labels, by)
		}
	}
	if matchesAll(n.terms.near, other.GetPod()) {
		for i := range n.terms.near {
			if _, in := labels[n.terms.near[i].TopologyKey]; in {
				n.wanted.change(n.terms.near[i].TopologyKey, labels, by)
				n.total += by
			}
		}
	}
	for i := range n.terms.away {
		if n.terms.away[i].Matches(other.GetPod(), nil) {
			n.unwanted.change(n.terms.away[i].TopologyKey, labels, by)
		}
	}
}

// Filter takes nodes whose domains have the pods that are wanted, and none that are not.
func (p *interPod) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	n, err := plugin.Read[*near](state, filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	labels := info.Node().Labels
	switch {
	case !n.hasWanted(labels):
		// No pod less makes one appear.
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonAffinity)
	case n.unwanted.any(labels):
		return fwk.NewStatus(fwk.Unschedulable, reasonAntiAffinity)
	case n.hostile.any(labels):
		return fwk.NewStatus(fwk.Unschedulable, reasonExisting)
	}
	return nil
}

func (n *near) hasWanted(labels map[string]string) bool {
	there := true
	for i := range n.terms.near {
		domain, ok := labels[n.terms.near[i].TopologyKey]
		if !ok {
			return false
		}
		there = there && n.wanted.at(n.terms.near[i].TopologyKey, domain) > 0
	}
	// The first of pods that want to be near each other may go anywhere, or none ever would.
	return there || n.total == 0 && n.self
}
