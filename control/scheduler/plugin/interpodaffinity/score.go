package interpodaffinity

import (
	"context"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

const scoreKey fwk.StateKey = "PreScore" + Name

// weights are of domains: the pods there that are for a pod's being there, less those that are against it.
type weights tallies

// Clone is itself: it does not change.
func (w weights) Clone() fwk.StateData { return w }

// weigher adds up the weights.
type weigher struct {
	pod        *corev1.Pod
	namespace  labels.Set
	terms      terms
	hardWeight int64
}

// PreScore adds up what the pod would like and what others would like of it, once for all nodes.
func (p *interPod) PreScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if len(nodes) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	t, err := preferred(pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	likes := len(t.likesNear)+len(t.dislikesNear) > 0
	if !likes && p.ignorePreferred {
		return fwk.NewStatus(fwk.Skip)
	}
	if err := p.resolve(&t); err != nil {
		return fwk.AsStatus(err)
	}
	w := &weigher{pod: pod, namespace: p.labelsOf(pod.Namespace), terms: t, hardWeight: p.hardWeight}
	// What the pod likes, any pod may have; else only those count that like something themselves.
	list, of := p.handle.SnapshotSharedLister().NodeInfos().HavePodsWithAffinityList, fwk.NodeInfo.GetPodsWithAffinity
	if likes {
		list, of = p.handle.SnapshotSharedLister().NodeInfos().List, fwk.NodeInfo.GetPods
	}
	sum, err := p.sum(ctx, &p.ledgers.liked, w, list, func(info fwk.NodeInfo) tallies { return w.weigh(info.Node().Labels, of(info)) })
	if err != nil {
		return fwk.AsStatus(err)
	}
	if !slices.ContainsFunc(nodes, func(info fwk.NodeInfo) bool { return sum.sum(info.Node().Labels) != 0 }) {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(scoreKey, weights(sum))
	return nil
}

// weigh is what the pods of one node come to for a pod, where the node is in a domain at all.
func (w *weigher) weigh(node labels.Set, pods []fwk.PodInfo) tallies {
	var t tallies
	if len(node) == 0 {
		return nil
	}
	for _, other := range pods {
		w.weighPod(&t, other, node)
	}
	return t
}

func (w *weigher) weighPod(t *tallies, other fwk.PodInfo, labels map[string]string) {
	own := other.GetPod()
	w.add(t, w.terms.likesNear, own, nil, labels, 1)
	w.add(t, w.terms.dislikesNear, own, nil, labels, -1)
	w.add(t, other.GetPreferredAffinityTerms(), w.pod, w.namespace, labels, 1)
	w.add(t, other.GetPreferredAntiAffinityTerms(), w.pod, w.namespace, labels, -1)
	if w.hardWeight == 0 {
		return
	}
	hard := other.GetRequiredAffinityTerms()
	for i := range hard {
		if hard[i].Matches(w.pod, w.namespace) {
			t.count(hard[i].TopologyKey, labels, w.hardWeight)
		}
	}
}

func (w *weigher) add(
	t *tallies, list []fwk.WeightedAffinityTerm, pod *corev1.Pod, ns labels.Set, node map[string]string, sign int64,
) {
	for i := range list {
		if list[i].Weight != 0 && list[i].Matches(pod, ns) {
			t.count(list[i].TopologyKey, node, sign*int64(list[i].Weight))
		}
	}
}

// Score was summed up before.
func (p *interPod) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	w, err := plugin.Read[weights](state, scoreKey)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	return tallies(w).sum(info.Node().Labels), nil
}

// ScoreExtensions are the plugin's own: sums may be negative.
func (p *interPod) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore stretches the scores from the lowest to the highest.
func (p *interPod) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range scores {
		low, high = min(low, scores[i].Score), max(high, scores[i].Score)
	}
	for i := range scores {
		s := 0.0
		if high > low {
			s = float64(fwk.MaxScore) * float64(scores[i].Score-low) / float64(high-low)
		}
		scores[i].Score = int64(s)
	}
	return nil
}
