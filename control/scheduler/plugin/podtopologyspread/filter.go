package podtopologyspread

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

const filterKey fwk.StateKey = "PreFilter" + Name

// counted are a pod's constraints that must hold, and the domains of each.
type counted struct {
	constraints []constraint
	domains     []domains
	inclusion   *inclusion
}

// Clone is for what preemption tries.
func (c *counted) Clone() fwk.StateData {
	n := &counted{c.constraints, make([]domains, len(c.domains)), c.inclusion}
	for i := range c.domains {
		n.domains[i] = c.domains[i].clone()
	}
	return n
}

// PreFilter counts the pods of every domain, once for all nodes.
func (s *spread) PreFilter(
	ctx context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	constraints, err := s.constraints(pod, corev1.DoNotSchedule)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if len(constraints) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	c := &counted{constraints, make([]domains, len(constraints)), inclusionOf(pod)}
	total, err := s.take(ctx, &s.must, newCensus(pod, constraints, true, true))
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	for i := range total {
		c.domains[i] = newDomains(total[i])
	}
	state.Write(filterKey, c)
	return nil, nil
}

// PreFilterExtensions follow pods that preemption takes away, and nominated ones that it adds.
func (s *spread) PreFilterExtensions() fwk.PreFilterExtensions { return s }

// AddPod counts one more on a node.
func (s *spread) AddPod(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, info fwk.NodeInfo,
) *fwk.Status {
	return change(state, pod, other.GetPod(), info.Node(), 1)
}

// RemovePod counts one less on a node.
func (s *spread) RemovePod(
	_ context.Context, state fwk.CycleState, pod *corev1.Pod, other fwk.PodInfo, info fwk.NodeInfo,
) *fwk.Status {
	return change(state, pod, other.GetPod(), info.Node(), -1)
}

func change(state fwk.CycleState, pod, other *corev1.Pod, node *corev1.Node, by int64) *fwk.Status {
	c, err := plugin.Read[*counted](state, filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	// One that ends was not counted, and is not counted out.
	if other.Namespace != pod.Namespace || other.DeletionTimestamp != nil || !inAll(node.Labels, c.constraints) {
		return nil
	}
	for i := range c.constraints {
		r := &c.constraints[i]
		if !r.selector.Empty() && r.selector.Matches(labels.Set(other.Labels)) && c.inclusion.counts(r, node) {
			c.domains[i].change(node.Labels[r.topology], by)
		}
	}
	return nil
}

// Filter takes nodes whose domains would not have too many more pods than the one with the fewest.
func (s *spread) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	c, err := plugin.Read[*counted](state, filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	node := info.Node().Labels
	for i := range c.constraints {
		r, d := &c.constraints[i], &c.domains[i]
		domain, ok := node[r.topology]
		if !ok {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasonNoLabel)
		}
		skew := d.at(domain)
		if d.len() >= r.minDomains {
			skew -= d.least
		}
		if r.self {
			skew++
		}
		if skew > r.maxSkew {
			return fwk.NewStatus(fwk.Unschedulable, reason)
		}
	}
	return nil
}
