package garbagecollector

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unique"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// waitsFor says whether an object waits, over others that wait, for another one, as it is said and not as it is found.
func waitsFor(g *graph, from, to *node, seen map[*node]bool) bool {
	for d := range from.dependents {
		if seen[d] || !d.waits() || !d.blocks(from) {
			continue
		}
		seen[d] = true
		if d == to || waitsFor(g, d, to, seen) {
			return true
		}
	}
	return false
}

// TestCircle has objects own each other at random: who waits for an object is found for all at once.
func TestCircle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	kind, in := unique.Make(schema.GroupKind{Kind: "ConfigMap"}), unique.Make("n")
	uid := func(i int) types.UID { return types.UID(fmt.Sprint("u", i)) }
	for range 500 {
		g := newGraph()
		const n = 8
		for i := range n {
			o := object{thing: thing{place{kind, in, fmt.Sprint(i)}, uid(i)}, deleting: r.IntN(4) > 0, foreground: true}
			for j := range n {
				if r.IntN(5) == 0 {
					o.owners = append(o.owners, owner{kind: kind, name: fmt.Sprint(j), uid: uid(j), blocks: r.IntN(4) > 0})
				}
			}
			g.observe(o)
		}
		for i := range n {
			got := g.circle(uid(i))
			for j := range n {
				a, b := g.nodes[uid(j)], g.nodes[uid(i)]
				if want := waitsFor(g, a, b, map[*node]bool{}); got[uid(j)] != want {
					t.Fatalf("%d waits for %d: %t, want %t", j, i, got[uid(j)], want)
				}
			}
		}
	}
}

// TestManyOwners has an object have as many owners as fit into it, and others instead: each dependent is known to those
// that it has now, and to no other.
func TestManyOwners(t *testing.T) {
	kind, in := unique.Make(schema.GroupKind{Kind: "ConfigMap"}), unique.Make("n")
	g := newGraph()
	of := func(from, to int) object {
		o := object{thing: thing{place{kind, in, "d"}, "d"}}
		for i := from; i < to; i++ {
			o.owners = append(o.owners, owner{kind: kind, name: fmt.Sprint(i), uid: types.UID(fmt.Sprint(i))})
		}
		return o
	}
	const n = 30_000
	g.observe(of(0, n))
	for i := range 4 {
		next := of(i%2, n+i%2)
		next.version = uint64(i + 1)
		g.observe(next)
	}
	if len(g.nodes) != n+1 || g.nodes["0"] != nil || g.nodes[types.UID(fmt.Sprint(n))] == nil {
		t.Errorf("%d objects are known", len(g.nodes))
	}
	if look := g.gone("d"); slices.Contains(look, "d") || len(g.nodes) != 0 {
		t.Errorf("%d objects are left", len(g.nodes))
	}
}
