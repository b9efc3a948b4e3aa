package defaultpreemption

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// candidate is a node with the pods to be ended on it, the most important first.
type candidate struct {
	node       string
	victims    []*corev1.Pod
	violations int // of disruption budgets
}

// victims are the fewest pods of a node without which the pod suits: all of less priority are taken away, and as many
// as may stay are put back, the more important first, those before that whose budget allows no disruption.
func (p *Plugin) victims(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo, all budgets) (*candidate, *fwk.Status) {
	remove := func(v fwk.PodInfo) *fwk.Status {
		if err := node.RemovePod(klog.FromContext(ctx), v.GetPod()); err != nil {
			return fwk.AsStatus(err)
		}
		return p.handle.RunPreFilterExtensionRemovePod(ctx, state, pod, v, node)
	}
	var lesser []fwk.PodInfo
	for _, other := range slices.Clone(node.GetPods()) {
		if ctx.Err() != nil {
			return nil, fwk.AsStatus(context.Cause(ctx))
		}
		if p.groups.priority(other.GetPod()) >= p.groups.priority(pod) {
			continue
		}
		lesser = append(lesser, other)
		if status := remove(other); !status.IsSuccess() {
			return nil, status
		}
	}
	if len(lesser) == 0 {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod")
	}
	if status := p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node); !status.IsSuccess() {
		return nil, status
	}
	slices.SortFunc(lesser, func(a, b fwk.PodInfo) int { return byImportance(a.GetPod(), b.GetPod()) })
	c := &candidate{node: node.Node().Name}
	violating, others := all.part(lesser)
	for i, group := range [][]fwk.PodInfo{violating, others} {
		for _, v := range group {
			if ctx.Err() != nil {
				return nil, fwk.AsStatus(context.Cause(ctx))
			}
			node.AddPodInfo(v)
			if status := p.handle.RunPreFilterExtensionAddPod(ctx, state, pod, v, node); !status.IsSuccess() {
				return nil, status
			}
			status := p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node)
			if status.IsSuccess() {
				continue
			}
			if status.IsError() {
				return nil, status
			}
			if status := remove(v); !status.IsSuccess() {
				return nil, status
			}
			c.victims = append(c.victims, v.GetPod())
			if i == 0 {
				c.violations++
			}
		}
	}
	c.victims = p.groups.with(c.victims)
	slices.SortFunc(c.victims, byImportance)
	return c, nil
}

// byImportance has pods of more priority first, and of those the ones that run for longer.
func byImportance(a, b *corev1.Pod) int {
	if n := cmp.Compare(priority(b), priority(a)); n != 0 {
		return n
	}
	return started(a).Compare(started(b))
}

// started is when a pod began to run; one that has not yet is the youngest.
func started(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return time.Unix(math.MaxInt32, 0)
}

// cheapest is the candidate whose victims matter least: to budgets, by the highest priority among them, by the sum of
// priorities, by number, and last by how short the most important have run.
func cheapest(all []*candidate) *candidate {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *candidate) int {
		return cmp.Or(
			cmp.Compare(a.violations, b.violations), cmp.Compare(a.highest(), b.highest()), cmp.Compare(a.sum(), b.sum()),
			cmp.Compare(len(a.victims), len(b.victims)), b.earliest().Compare(a.earliest()),
		)
	})
}

func (c *candidate) highest() int32 {
	if len(c.victims) == 0 {
		return math.MinInt32
	}
	return priority(c.victims[0])
}

// sum is that of priorities, each made positive: else many pods of negative priority would be less than one.
func (c *candidate) sum() int64 {
	var sum int64
	for _, v := range c.victims {
		sum += int64(priority(v)) + math.MaxInt32 + 1
	}
	return sum
}

// earliest is when the first of the most important victims began.
func (c *candidate) earliest() time.Time {
	var first time.Time
	for _, v := range c.victims {
		if at := started(v); priority(v) == c.highest() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
