package garbagecollector

import (
	"slices"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// known is what the graph has of an object: itself, and whether by what is known nothing is to be done about it.
func (g *graph) known(uid types.UID) (o object, idle, virtual, is bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return object{}, true, false, false
	}
	if n.virtual {
		return n.object, false, true, true
	}
	if n.deleting {
		return n.object, !n.foreground && !n.orphans, false, true
	}
	for _, to := range n.owners {
		o := g.nodes[to.uid]
		if !n.linked(o) || o.virtual || o.waits() || !to.at(o, n) {
			return n.object, false, false, true
		}
	}
	return n.object, true, false, true
}

// of are the objects that are, or whose owners are said to be, of some kinds.
func (g *graph) of(kinds map[schema.GroupKind]bool) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []types.UID
	for uid, n := range g.nodes {
		if n.virtual && kinds[n.kind.Value()] || slices.ContainsFunc(n.owners, func(to owner) bool { return kinds[to.kind.Value()] }) {
			all = append(all, uid)
		}
	}
	return all
}

// space is the namespace of an object, whose looks wait for those of others.
func (g *graph) space(uid types.UID) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		return n.namespace.Value()
	}
	return ""
}

// elsewhere says whether an object is known, and where it is not of a namespace that may own what is in another.
func (g *graph) elsewhere(uid types.UID, namespace unique.Handle[string]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	return n != nil && !n.virtual && n.namespace != none && n.namespace != namespace
}

// dependents are those that refer to an object.
func (g *graph) dependents(uid types.UID) []thing {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	all := make([]thing, 0, len(n.dependents))
	for d := range n.dependents {
		all = append(all, d.thing)
	}
	inOrder(all)
	return all
}

// blocking are the dependents that an object waits for: those that somebody has still to delete, and those that wait
// for their dependents themselves.
func (g *graph) blocking(uid types.UID) (open, waiting []thing) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil, nil
	}
	for d := range n.dependents {
		switch {
		case !d.blocks(n):
		case d.waits():
			waiting = append(waiting, d.thing)
		default:
			open = append(open, d.thing)
		}
	}
	inOrder(waiting)
	return open, waiting
}

// circle are the objects that wait, over others that wait, for one that waits itself: whoever of its dependents is
// among them is never gone. They are looked for from that one upwards, all at once: anybody may have thousands of
// objects own each other.
func (g *graph) circle(of types.UID) map[types.UID]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := map[types.UID]bool{}
	begin := g.nodes[of]
	if begin == nil || !begin.waits() {
		return found
	}
	for next := []*node{begin}; len(next) > 0; {
		d := next[len(next)-1]
		next = next[:len(next)-1]
		for _, to := range d.owners {
			n := g.nodes[to.uid]
			if n == nil || n == d || !to.blocks || found[n.uid] {
				continue
			}
			found[n.uid] = true
			if n.waits() {
				next = append(next, n)
			}
		}
	}
	return found
}

// blocks says whether a dependent keeps its owner. Nobody waits for itself.
func (n *node) blocks(o *node) bool {
	return n != o && slices.ContainsFunc(n.owners, func(to owner) bool { return to.uid == o.uid && to.blocks })
}

// has says whether an object has dependents, and whether one of them waits for its own.
func (g *graph) has(uid types.UID) (any, waiting bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return false, false
	}
	for d := range n.dependents {
		if d.waits() {
			return true, true
		}
	}
	return len(n.dependents) > 0, false
}
