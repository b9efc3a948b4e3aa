package plugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
)

// Ledger has what each node comes to for one kind of pod: pods come many of a kind, and between two of them one node
// has changed of thousands. P is one node's part.
type Ledger[P any] struct {
	entries []*entry[P] // in the order of the nodes when they were last looked at
	byName  map[string]*entry[P]
	round   int64
	// of is where the nodes are from, and mark when it was looked at.
	of   *cluster.Snapshot
	mark cluster.Mark
}

// entry is one node's part, good as long as the node's generation is the same.
type entry[P any] struct {
	name       string
	generation int64
	pods       int
	round      int64 // the last that the node was there in
	counted    bool
	part       P
}

// Update looks at the nodes that have changed: add is told of the part that each had (-1) and has (1). The list is of
// all nodes of the snapshot, but for such as have no part. If its time is over before, it returns the cause, and the
// next one goes on with the rest.
func (l *Ledger[P]) Update(
	ctx context.Context, h fwk.Handle, list func() ([]fwk.NodeInfo, error), count func(fwk.NodeInfo) P, add func(part P, sign int64),
) error {
	from, _ := h.SnapshotSharedLister().(*cluster.Snapshot) // of others nobody knows what has changed
	if l.follow(from, count, add) {
		return nil
	}
	l.of = nil
	nodes, err := list()
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	if err := l.update(ctx, h.Parallelizer(), nodes, count, add); err != nil {
		return err
	}
	if from != nil {
		l.of, l.mark = from, from.Mark()
	}
	return nil
}

// fewNodes are counted one after the other, whatever time is left.
const fewNodes = 64

// follow looks at those nodes only that a snapshot says have changed. Not good: all have to be looked at.
func (l *Ledger[P]) follow(from *cluster.Snapshot, count func(fwk.NodeInfo) P, add func(part P, sign int64)) (good bool) {
	if from == nil || l.of != from {
		return false
	}
	changes, known := from.Since(l.mark)
	if !known || len(changes.Nodes) > fewNodes {
		return false
	}
	for _, name := range changes.Nodes {
		info, err := from.NodeInfos().Get(name)
		if err != nil {
			return false
		}
		e := l.byName[name]
		if e == nil {
			e = &entry[P]{name: name, round: l.round}
			l.byName[name] = e
		}
		if !e.is(info) {
			e.become(info, count(info), add)
		}
	}
	l.mark = from.Mark()
	return true
}

// is says whether a node is what it was when it was counted.
func (e *entry[P]) is(info fwk.NodeInfo) bool {
	return e.counted && e.generation == info.GetGeneration() && e.pods == len(info.GetPods())
}

func (e *entry[P]) become(info fwk.NodeInfo, part P, add func(part P, sign int64)) {
	if e.counted {
		add(e.part, -1)
	}
	e.generation, e.pods, e.part, e.counted = info.GetGeneration(), len(info.GetPods()), part, true
	add(e.part, 1)
}

func (l *Ledger[P]) update(
	ctx context.Context, p fwk.Parallelizer, nodes []fwk.NodeInfo, count func(fwk.NodeInfo) P, add func(part P, sign int64),
) error {
	changed := l.align(nodes)
	parts, counted := make([]P, len(changed)), make([]bool, len(changed))
	const chunk = 64 // is enough work to be worth another goroutine
	p.Until(ctx, (len(changed)+chunk-1)/chunk, func(n int) {
		for i := n * chunk; i < min((n+1)*chunk, len(changed)) && ctx.Err() == nil; i++ {
			parts[i], counted[i] = count(nodes[changed[i]]), true
		}
	}, "Ledger")
	for i, at := range changed {
		if counted[i] {
			l.entries[at].become(nodes[at], parts[i], add)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("count pods: %w", context.Cause(ctx)) // some were not
	}
	if len(l.byName) == len(nodes) {
		return nil
	}
	for name, e := range l.byName {
		if e.round != l.round { // it is gone, or has nothing that matters any more
			if e.counted {
				add(e.part, -1)
			}
			delete(l.byName, name)
		}
	}
	return nil
}

// align has an entry for each node, and says which nodes are not what they were.
func (l *Ledger[P]) align(nodes []fwk.NodeInfo) []int {
	if l.byName == nil {
		l.byName = map[string]*entry[P]{}
	}
	l.round++
	if len(l.entries) > len(nodes) {
		clear(l.entries[len(nodes):])
	}
	l.entries = slices.Grow(l.entries[:min(len(l.entries), len(nodes))], len(nodes))[:len(nodes)]
	var changed []int
	for i, info := range nodes {
		name := info.Node().Name
		e := l.entries[i]
		if e == nil || e.name != name {
			if e = l.byName[name]; e == nil {
				e = &entry[P]{name: name}
				l.byName[name] = e
			}
			l.entries[i] = e
		}
		e.round = l.round
		if !e.is(info) {
			changed = append(changed, i)
		}
	}
	return changed
}

// kinds is how many ledgers are kept. Each has an entry a node that has pods that matter.
const kinds = 4

// Kinds are what is kept of the kinds of pods that came last.
type Kinds[T any] struct {
	mu   sync.Mutex
	last []T // the latest first
}

// With calls f with what is kept of a kind, or with what is made in place of the oldest. Nobody else has it meanwhile.
func (k *Kinds[T]) With(same func(T) bool, made func() T, f func(T) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.last, same)
	var one T
	if i >= 0 {
		one = k.last[i]
		k.last = slices.Delete(k.last, i, i+1)
	} else {
		one = made()
	}
	k.last = slices.Insert(k.last, 0, one)
	if len(k.last) > kinds {
		k.last = slices.Delete(k.last, kinds, len(k.last))
	}
	return f(one)
}
