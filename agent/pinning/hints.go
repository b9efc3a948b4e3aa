package pinning

import (
	"math/bits"

	"github.com/berth-node/berth/agent/topology"
)

// Nodes is a set of NUMA nodes: bit n is node n.
type Nodes uint64

// NodesOf is the set of those nodes, of which each is from 0 to 63.
func NodesOf(ids ...int) Nodes {
	var out Nodes
	for _, id := range ids {
		out |= 1 << id
	}
	return out
}

// Count is how many nodes are in the set.
func (n Nodes) Count() int { return bits.OnesCount64(uint64(n)) }

func (n Nodes) has(id int) bool { return n&(1<<id) != 0 }

func (n Nodes) list() []int {
	var out []int
	for rest := uint64(n); rest != 0; rest &= rest - 1 {
		out = append(out, bits.TrailingZeros64(rest))
	}
	return out
}

// Hint is a set of nodes that one resource of a container can come from. It is preferred when no smaller set of nodes
// could ever hold as much.
type Hint struct {
	Nodes     Nodes
	Preferred bool
}

// Wish says where another resource that a container asks for can come from.
type Wish struct {
	Hints []Hint // none: it cannot be had from any nodes
	What  string // for messages, such as "2 example.com/gpu of 4 free"
}

// wish is what one resource can do. nil: it does not care; empty: it cannot be had from any nodes.
type wish []Hint

// AlignmentPolicy is what is done with pods whose resources do not come from the same nodes.
type AlignmentPolicy string

// The policies, by kubelet's names.
const (
	AlignNone       AlignmentPolicy = "none"
	AlignBestEffort AlignmentPolicy = "best-effort"
	AlignRestricted AlignmentPolicy = "restricted"
	AlignSingleNode AlignmentPolicy = "single-numa-node"
)

// aligner brings the wishes of all resources together.
type aligner struct {
	policy  AlignmentPolicy
	closest bool // of sets of one size, that of the nodes nearest to each other
	machine *topology.Machine
	all     Nodes
}

// merge chooses the nodes that suit all wishes, and says whether the policy lets the container in with them. Nodes 0:
// anywhere.
func (a *aligner) merge(wishes []wish) (Hint, bool) {
	if a.policy == AlignNone {
		return Hint{}, true
	}
	possible := map[Hint]bool{{a.all, true}: true}
	least := 0
	for _, asked := range wishes {
		w := a.complete(asked)
		next := map[Hint]bool{}
		smallest := a.all.Count()
		for _, h := range w {
			smallest = min(smallest, h.Nodes.Count())
			for p := range possible {
				if both := p.Nodes & h.Nodes; both != 0 {
					next[Hint{both, p.Preferred && h.Preferred}] = true
				}
			}
		}
		if len(asked) > 0 {
			least = max(least, smallest)
		}
		possible = next
	}
	best := Hint{a.all, false}
	first := true
	for h := range possible {
		if first || a.better(h, best, least) {
			best, first = h, false
		}
	}
	switch a.policy {
	case AlignBestEffort:
		return best, true
	case AlignSingleNode:
		// That nobody minds is no single node, and none is needed.
		if best.Nodes == a.all && best.Preferred {
			return Hint{Preferred: true}, true
		}
	}
	return best, best.Preferred
}

// complete makes a list out of a wish that is none, and takes out what the policy does not want.
func (a *aligner) complete(w wish) wish {
	switch {
	case w == nil:
		return wish{{a.all, true}}
	case a.policy == AlignSingleNode:
		var single wish
		for _, h := range w {
			if h.Preferred && h.Nodes.Count() == 1 {
				single = append(single, h)
			}
		}
		w = single
	}
	if len(w) == 0 {
		return wish{{a.all, false}}
	}
	return w
}

// better says whether h is to be taken rather than b. least is how many nodes the most demanding resource needs: of
// hints that nobody prefers, one with that many nodes wastes least.
func (a *aligner) better(h, b Hint, least int) bool {
	if h.Preferred != b.Preferred {
		return h.Preferred
	}
	n, m := h.Nodes.Count(), b.Nodes.Count()
	if !h.Preferred && n != m {
		if (n >= least) != (m >= least) {
			return n >= least
		}
		return abs(n-least) < abs(m-least)
	}
	if n != m {
		return n < m
	}
	if a.closest {
		if x, y := spread(a.machine, h.Nodes), spread(a.machine, b.Nodes); x != y {
			return x < y
		}
	}
	return h.Nodes < b.Nodes
}

func abs(n int) int { return max(n, -n) }

// spread is the sum of the distances between nodes. Sets of one size are compared by it.
func spread(m *topology.Machine, n Nodes) int {
	sum := 0
	ids := n.list()
	for _, a := range ids {
		for _, b := range ids {
			sum += m.Distance(a, b)
		}
	}
	return sum
}

// Subsets calls fn with every set of nodes that is not empty, those with fewer nodes first.
func Subsets(ids []int, fn func(Nodes)) {
	var all []Nodes
	for bitsOf := 1; bitsOf < 1<<len(ids); bitsOf++ {
		var n Nodes
		for i, id := range ids {
			if bitsOf&(1<<i) != 0 {
				n |= 1 << id
			}
		}
		all = append(all, n)
	}
	for size := 1; size <= len(ids); size++ {
		for _, n := range all {
			if n.Count() == size {
				fn(n)
			}
		}
	}
}
