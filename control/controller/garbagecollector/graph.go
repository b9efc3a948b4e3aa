package garbagecollector

import (
	"slices"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// node is an object in the graph. It is virtual until its own watch tells of it: others refer to it, and it may not be.
type node struct {
	object
	virtual    bool
	dependents map[*node]struct{}
}

// graph is who owns whom, by what the watches say. It is late, and may be wrong: it says where to look, and what is
// done about it is decided by what the API says then. Its methods return who has to be looked at.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
}

func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}} }

// observe is told of an object by its watch.
func (g *graph) observe(o object) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.take(o)
}

// update is told of an object by a read of it. One that has gone meanwhile does not return by that, and of one that is
// only referred to its watch tells.
func (g *graph) update(o object) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[o.uid]; n == nil || n.virtual {
		return nil
	}
	return g.take(o)
}

// gone is told that an object is no more.
func (g *graph) gone(uid types.UID) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.remove(uid)
}

// missing is told that nothing is where an object is said to be. Of one that is only referred to, another reference may
// say where it is: those who refer to it find out.
func (g *graph) missing(uid types.UID) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil && n.virtual {
		return n.who(nil)
	}
	return g.remove(uid)
}

// replace is told of all objects of a kind that there are.
func (g *graph) replace(kind unique.Handle[schema.GroupKind], all []object) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	are := make(map[types.UID]struct{}, len(all))
	var look []types.UID
	for _, o := range all {
		are[o.uid] = struct{}{}
		look = append(look, g.take(o)...)
	}
	var gone []types.UID
	for uid, n := range g.nodes {
		if _, is := are[uid]; is || n.kind != kind {
			continue
		}
		if n.virtual {
			look = append(look, uid) // it may have gone before anybody told of it
		} else {
			gone = append(gone, uid)
		}
	}
	for _, uid := range gone {
		look = append(look, g.remove(uid)...)
	}
	return look
}

func (g *graph) take(o object) []types.UID {
	n := g.nodes[o.uid]
	if n == nil {
		n = &node{object: object{thing: o.thing}, virtual: true}
		g.nodes[o.uid] = n
	}
	if !n.virtual && o.version < n.version {
		return nil // it was told too late
	}
	var look []types.UID
	if n.place != o.place {
		// Who refers to another place than where the object is refers to nothing.
		n.place = o.place
		look = n.who(look)
	}
	before := n.object
	known := !n.virtual
	n.virtual = false
	n.version, n.deleting, n.foreground, n.orphans = o.version, o.deleting, o.foreground, o.orphans
	if !slices.Equal(before.owners, o.owners) || !known {
		look = append(look, g.own(n, o.owners)...)
	}
	switch {
	case n.deleting && n.foreground && !(before.deleting && before.foreground):
		look = n.who(append(look, n.uid))
	case n.deleting && n.orphans && !(before.deleting && before.orphans):
		look = append(look, n.uid)
	}
	return look
}

// own gives a node its owners, in place of those that it had.
func (g *graph) own(n *node, owners []owner) []types.UID {
	var look []types.UID
	stay := make(map[types.UID]struct{}, len(owners)) // an object may have as many owners as fit into it
	for i := range owners {
		stay[owners[i].uid] = struct{}{}
	}
	for _, before := range n.owners {
		o := g.nodes[before.uid]
		if o == nil {
			continue
		}
		if _, stays := stay[before.uid]; !stays {
			delete(o.dependents, n)
			if o.virtual && len(o.dependents) == 0 {
				delete(g.nodes, o.uid)
			}
		}
		if o.waits() {
			look = append(look, o.uid) // perhaps no longer for this one
		}
	}
	n.owners = slices.Clip(owners)
	for i := range n.owners {
		look = append(look, g.link(n, &n.owners[i])...)
	}
	return look
}

// link has an owner know of its dependent. One that is not known may not be.
func (g *graph) link(n *node, to *owner) []types.UID {
	var look []types.UID
	o := g.nodes[to.uid]
	switch {
	case o == nil:
		p := place{to.kind, n.namespace, to.name}
		o = &node{object: object{thing: thing{p, to.uid}}, virtual: true}
		g.nodes[to.uid] = o
		look = append(look, o.uid)
		if p.namespace == none {
			look = append(look, n.uid) // its owner may be of a kind that is in namespaces only
		}
	case o.waits() || !to.at(o, n):
		look = append(look, n.uid)
	}
	// A thousand dependents have one owner: its name and UID are kept once.
	to.uid = o.uid
	if to.name == o.name {
		to.name = o.name
	}
	if o.dependents == nil {
		o.dependents = map[*node]struct{}{}
	}
	o.dependents[n] = struct{}{}
	return look
}

func (g *graph) remove(uid types.UID) []types.UID {
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	delete(g.nodes, uid)
	look := n.who(nil)
	for _, to := range n.owners {
		o := g.nodes[to.uid]
		if o == nil {
			continue
		}
		delete(o.dependents, n)
		switch {
		case o.waits():
			look = append(look, o.uid)
		case o.virtual && len(o.dependents) == 0:
			delete(g.nodes, o.uid) // nobody refers to it any more
		}
	}
	return look
}

// at says whether a reference of a dependent is to where its owner is.
func (to owner) at(o, dependent *node) bool {
	return to.kind == o.kind && to.name == o.name && (o.namespace == dependent.namespace || o.namespace == none && !o.virtual)
}

// linked says whether an owner knows of its dependent. One that was taken for gone has come back without.
func (n *node) linked(o *node) bool {
	if o == nil {
		return false
	}
	_, is := o.dependents[n]
	return is
}

func (o *object) waits() bool { return o.deleting && o.foreground }

// who are the dependents.
func (n *node) who(look []types.UID) []types.UID {
	for d := range n.dependents {
		look = append(look, d.uid)
	}
	return look
}

// relink has owners that are, and that the graph has lost, in it again.
func (g *graph) relink(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return
	}
	for i := range n.owners {
		if !n.linked(g.nodes[n.owners[i].uid]) {
			g.link(n, &n.owners[i])
		}
	}
}
