package podtopologyspread

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// census is how many pods there are in the domains of some constraints, for pods of one kind.
type census struct {
	pod         *corev1.Pod
	constraints []constraint
	all         bool // only nodes count that are in all topologies
	hosts       bool // hosts are domains as others are; else the pods of each node are counted for itself, by its name
	inclusion   *inclusion

	ledger plugin.Ledger[[]share]
	// counts are of each constraint by domain, and nodes how many nodes there are in it: a domain may have no pods.
	counts []map[string]int64
	nodes  []map[string]int
}

// share is what a node has of a constraint's domain.
type share struct {
	domain string
	pods   int64
	in     bool
}

func newCensus(pod *corev1.Pod, constraints []constraint, all, hosts bool) *census {
	c := &census{pod: pod, constraints: constraints, all: all, hosts: hosts, inclusion: inclusionOf(pod)}
	for range constraints {
		c.counts, c.nodes = append(c.counts, map[string]int64{}), append(c.nodes, map[string]int{})
	}
	return c
}

// same says whether two are of the same pods of the same nodes.
func (c *census) same(o *census) bool {
	return c.all == o.all && c.hosts == o.hosts && c.pod.Namespace == o.pod.Namespace &&
		slices.EqualFunc(c.constraints, o.constraints, func(a, b constraint) bool {
			return a.topology == b.topology && a.affinity == b.affinity && a.taints == b.taints && a.selector.String() == b.selector.String()
		}) &&
		maps.Equal(c.pod.Spec.NodeSelector, o.pod.Spec.NodeSelector) &&
		equality.Semantic.DeepEqual(requiredOf(c.pod), requiredOf(o.pod)) &&
		equality.Semantic.DeepEqual(c.pod.Spec.Tolerations, o.pod.Spec.Tolerations)
}

func requiredOf(pod *corev1.Pod) *corev1.NodeSelector {
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

// count is what a node has of each constraint's domain; nil: nothing.
func (c *census) count(info fwk.NodeInfo) []share {
	n := info.Node()
	if c.all && !inAll(n.Labels, c.constraints) {
		return nil
	}
	shares := make([]share, len(c.constraints))
	for i := range c.constraints {
		r := &c.constraints[i]
		if r.topology == corev1.LabelHostname && !c.hosts {
			shares[i] = share{n.Name, r.count(info.GetPods(), c.pod.Namespace), true}
			continue
		}
		if !c.inclusion.counts(r, n) {
			continue
		}
		shares[i] = share{n.Labels[r.topology], r.count(info.GetPods(), c.pod.Namespace), true}
	}
	return shares
}

func (c *census) add(shares []share, sign int64) {
	for i, s := range shares {
		if !s.in {
			continue
		}
		c.counts[i][s.domain] += sign * s.pods
		if c.nodes[i][s.domain] += int(sign); c.nodes[i][s.domain] == 0 {
			delete(c.nodes[i], s.domain)
			delete(c.counts[i], s.domain)
		}
	}
}

// take brings the census of a pod's kind up to date. What it has counted stands until the next one is taken.
func (s *spread) take(ctx context.Context, of *plugin.Kinds[*census], c *census) (counts []map[string]int64, err error) {
	err = of.With(c.same, func() *census { return c }, func(c *census) error {
		counts = c.counts
		return c.ledger.Update(ctx, s.handle, s.handle.SnapshotSharedLister().NodeInfos().List, c.count, c.add)
	})
	return counts, err
}
