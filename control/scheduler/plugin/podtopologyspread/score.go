package podtopologyspread

import (
	"context"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

const scoreKey fwk.StateKey = "PreScore" + Name

// hopeless is of a node that is in no domain of some topology, before scores are normalized.
const hopeless = -1

// preferences are a pod's constraints that would better hold.
type preferences struct {
	constraints []constraint
	counts      []map[string]int64 // of each constraint; those of hosts are by the names of nodes
	weights     []float64          // of each: more for topologies of many domains, whose counts are small
	all         bool               // nodes must be in all topologies to be scored
}

// Clone is itself: it does not change.
func (p *preferences) Clone() fwk.StateData { return p }

func (p *preferences) host(i int) bool { return p.constraints[i].topology == corev1.LabelHostname }

// skips says of a node that it is not scored.
func (p *preferences) skips(node *corev1.Node) bool {
	return p.all && !inAll(node.Labels, p.constraints)
}

// PreScore counts the pods of the domains.
func (s *spread) PreScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	constraints, err := s.constraints(pod, corev1.ScheduleAnyway)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(constraints) == 0 || len(nodes) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	p := &preferences{constraints: constraints}
	// With Kubernetes' own defaults a node may have no zone and is still spread over by host.
	p.all = len(pod.Spec.TopologySpreadConstraints) > 0 || !s.system
	p.weigh(nodes)
	if p.counts, err = s.take(ctx, &s.better, newCensus(pod, constraints, p.all, false)); err != nil {
		return fwk.AsStatus(err)
	}
	state.Write(scoreKey, p)
	return nil
}

// weigh weighs the topologies by how many domains the nodes that are left are in.
func (p *preferences) weigh(nodes []fwk.NodeInfo) {
	p.weights = make([]float64, len(p.constraints))
	domains := make([]sets.Set[string], len(p.constraints))
	for i := range domains {
		domains[i] = sets.New[string]()
	}
	scored := 0
	for _, info := range nodes {
		n := info.Node()
		if p.skips(n) {
			continue
		}
		scored++
		for i := range p.constraints {
			if !p.host(i) {
				domains[i].Insert(n.Labels[p.constraints[i].topology])
			}
		}
	}
	for i := range p.constraints {
		size := domains[i].Len()
		if p.host(i) {
			size = scored
		}
		p.weights[i] = math.Log(float64(size + 2))
	}
}

// Score is how many pods there are in the node's domains, weighed.
func (s *spread) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	p, err := plugin.Read[*preferences](state, scoreKey)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	n := info.Node()
	if p.skips(n) {
		return hopeless, nil
	}
	sum := 0.0
	for i := range p.constraints {
		c := &p.constraints[i]
		domain, ok := n.Labels[c.topology]
		if !ok {
			continue
		}
		count := p.counts[i][domain]
		if p.host(i) {
			count = p.counts[i][n.Name]
		}
		// The skew that is allowed makes differences count less.
		sum += float64(count)*p.weights[i] + float64(c.maxSkew-1)
	}
	return int64(math.Round(sum)), nil
}

// ScoreExtensions are the plugin's own: fewer is better, and some nodes are not scored.
func (s *spread) ScoreExtensions() fwk.ScoreExtensions { return s }

// NormalizeScore turns the scores around.
func (s *spread) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	low, high := int64(math.MaxInt64), int64(0)
	for i := range scores {
		if scores[i].Score != hopeless {
			low, high = min(low, scores[i].Score), max(high, scores[i].Score)
		}
	}
	for i := range scores {
		switch at := &scores[i].Score; {
		case *at == hopeless:
			*at = 0
		case high == 0:
			*at = fwk.MaxScore
		default:
			*at = fwk.MaxScore * (high + low - *at) / high
		}
	}
	return nil
}
