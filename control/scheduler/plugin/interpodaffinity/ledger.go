package interpodaffinity

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"
)

// ledgers are of the kinds of pods that were scored last: pods come many of a kind, and between two of them one node
// has changed of thousands.
type ledgers struct {
	mu   sync.Mutex
	last []*ledger // the latest first
}

// kinds is how many are kept. Each has an entry a node that has pods that matter.
const kinds = 4

// ledger has what the pods of each node come to for one kind of pod, and the sum of all.
type ledger struct {
	kind    weigher
	entries []*entry // in the order of the nodes when they were last looked at
	byName  map[string]*entry
	sum     tallies
	round   int64
}

// entry is one node's part of the sum, good as long as the node's generation is the same.
type entry struct {
	name       string
	generation int64
	pods       int
	round      int64 // the last that the node was there in
	part       tallies
}

// same says of two pods that all others are for and against them alike.
func (w *weigher) same(o *weigher) bool {
	terms := func(a, b []fwk.WeightedAffinityTerm) bool {
		return slices.EqualFunc(a, b, func(x, y fwk.WeightedAffinityTerm) bool { return x.Namespaces.Equal(y.Namespaces) })
	}
	return w.pod.Namespace == o.pod.Namespace && w.hardWeight == o.hardWeight && maps.Equal(w.pod.Labels, o.pod.Labels) &&
		maps.Equal(map[string]string(w.namespace), map[string]string(o.namespace)) &&
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

// score is of nodes that a pod may go to, from all nodes that have pods that matter. Nodes that score nothing are left
// out.
func (l *ledgers) score(
	ctx context.Context, w *weigher, all []fwk.NodeInfo, of func(fwk.NodeInfo) []fwk.PodInfo, nodes []fwk.NodeInfo,
) (map[string]int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of(w)
	if err := one.update(ctx, w, all, of); err != nil {
		return nil, err
	}
	scores := map[string]int64{}
	for _, info := range nodes {
		if n := one.sum.sum(info.Node().Labels); n != 0 {
			scores[info.Node().Name] = n
		}
	}
	return scores, nil
}

// of is the ledger of a kind, a new one in place of the oldest if there is none.
func (l *ledgers) of(w *weigher) *ledger {
	i := slices.IndexFunc(l.last, func(one *ledger) bool { return one.kind.same(w) })
	var one *ledger
	if i >= 0 {
		one = l.last[i]
		l.last = slices.Delete(l.last, i, i+1)
	} else {
		one = &ledger{kind: *w, byName: map[string]*entry{}}
	}
	l.last = slices.Insert(l.last, 0, one)
	l.last = l.last[:min(len(l.last), kinds)]
	return one
}

// update looks at the nodes that have changed. If its time is over before, the next one goes on with the rest.
func (l *ledger) update(ctx context.Context, w *weigher, all []fwk.NodeInfo, of func(fwk.NodeInfo) []fwk.PodInfo) error {
	l.round++
	if len(l.entries) > len(all) {
		clear(l.entries[len(all):])
	}
	l.entries = slices.Grow(l.entries[:min(len(l.entries), len(all))], len(all))[:len(all)]
	for i, info := range all {
		name := info.Node().Name
		e := l.entries[i]
		if e == nil || e.name != name {
			if e = l.byName[name]; e == nil {
				e = &entry{name: name, generation: -1}
				l.byName[name] = e
			}
			l.entries[i] = e
		}
		e.round = l.round
		pods := of(info)
		if e.generation == info.GetGeneration() && e.pods == len(pods) {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("weigh pods: %w", context.Cause(ctx))
		}
		l.add(e.part, -1)
		e.generation, e.pods, e.part = info.GetGeneration(), len(pods), w.weigh(info.Node().Labels, pods)
		l.add(e.part, 1)
	}
	if len(l.byName) == len(all) {
		return nil
	}
	for name, e := range l.byName {
		if e.round != l.round { // it is gone, or has no pods that matter any more
			l.add(e.part, -1)
			delete(l.byName, name)
		}
	}
	return nil
}

// add adds or takes away a node's part. A domain that comes to nothing is forgotten: names of nodes come and go.
func (l *ledger) add(part tallies, sign int64) {
	for i := range part {
		own := l.sum.of(part[i].topology).first
		for domain, n := range part[i].first {
			if own[domain] += sign * n; own[domain] == 0 {
				delete(own, domain)
			}
		}
	}
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
