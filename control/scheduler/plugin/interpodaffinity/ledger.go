package interpodaffinity

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/plugin"
)

// ledgers are of what is counted: by what others demand of a pod and by what it demands of them, and by wishes.
type ledgers struct {
	hostile, wanted, unwanted, liked plugin.Kinds[*ledger]
}

// ledger has what the pods of each node come to for one kind of pod, and the sum of all.
type ledger struct {
	kind   kind
	ledger plugin.Ledger[tallies]
	sum    tallies
}

// kind is of pods that count alike, in what is counted.
type kind interface{ same(other kind) bool }

// meant are pods that the terms of others mean or do not, all in the same way.
type meant struct {
	pod       *corev1.Pod
	namespace labels.Set
}

func (m meant) same(other kind) bool {
	o, ok := other.(meant)
	return ok && m.pod.Namespace == o.pod.Namespace && maps.Equal(m.pod.Labels, o.pod.Labels) && maps.Equal(m.namespace, o.namespace)
}

// meaning are pods whose terms mean the same others.
type meaning []fwk.AffinityTerm

func (m meaning) same(other kind) bool {
	o, ok := other.(meaning)
	return ok && slices.EqualFunc(m, o, func(a, b fwk.AffinityTerm) bool {
		return a.TopologyKey == b.TopologyKey && a.Namespaces.Equal(b.Namespaces) && a.Selector.String() == b.Selector.String() &&
			a.NamespaceSelector.String() == b.NamespaceSelector.String()
	})
}

// same says of two pods that all others are for and against them alike.
func (w *weigher) same(other kind) bool {
	o, ok := other.(*weigher)
	terms := func(a, b []fwk.WeightedAffinityTerm) bool {
		return slices.EqualFunc(a, b, func(x, y fwk.WeightedAffinityTerm) bool { return x.Namespaces.Equal(y.Namespaces) })
	}
	return ok && w.pod.Namespace == o.pod.Namespace && w.hardWeight == o.hardWeight && maps.Equal(w.pod.Labels, o.pod.Labels) &&
		maps.Equal(w.namespace, o.namespace) &&
		terms(w.terms.likesNear, o.terms.likesNear) && terms(w.terms.dislikesNear, o.terms.dislikesNear) &&
		equality.Semantic.DeepEqual(likings(w.pod), likings(o.pod))
}

// likings are the preferences of a pod for others, as they are written.
func likings(pod *corev1.Pod) [2][]corev1.WeightedPodAffinityTerm {
	var l [2][]corev1.WeightedPodAffinityTerm
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		l[0] = a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		l[1] = a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	}
	return l
}

// sum is what the nodes of a list come to for a kind of pod, until it is asked for again.
func (p *interPod) sum(
	ctx context.Context, of *plugin.Kinds[*ledger], k kind, list func() ([]fwk.NodeInfo, error), count func(fwk.NodeInfo) tallies,
) (sum tallies, err error) {
	err = of.With(
		func(l *ledger) bool { return l.kind.same(k) },
		func() *ledger { return &ledger{kind: k} },
		func(l *ledger) error {
			err := l.ledger.Update(ctx, p.handle, list, count, l.add)
			sum = l.sum.clone() // what comes and goes since is each pod's own
			return err
		})
	return sum, err
}

// add adds or takes away a node's part. A domain that comes to nothing is forgotten: names of nodes come and go.
func (l *ledger) add(part tallies, sign int64) {
	for i := range part {
		own := l.sum.of(part[i].topology)
		for domain, n := range part[i].first {
			own.all += sign * n
			if own.first[domain] += sign * n; own.first[domain] == 0 {
				delete(own.first, domain)
			}
		}
	}
}
