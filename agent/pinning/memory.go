package pinning

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/topology"
)

// Block is memory of one kind that a container has from a set of nodes.
type Block struct {
	Resource corev1.ResourceName `json:"resource"`
	Nodes    []int               `json:"nodes"`
	Bytes    int64               `json:"bytes"`
}

// amounts are bytes by kind of memory.
type amounts map[corev1.ResourceName]int64

// pool is the memory of one node.
type pool struct {
	allocatable amounts
	free        amounts
	group       Nodes // the set of nodes that containers here were given; 0: none has any
	users       int   // blocks
}

// memory is what is free on all nodes. It is derived from the assignments, and never written down.
type memory struct {
	m     *topology.Machine
	nodes map[int]*pool
}

// hugeName is the API's name of a page size.
func hugeName(size uint64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(int64(size), resource.BinarySI).String())
}

// newMemory is a machine of which nothing is given away but what is reserved.
func newMemory(m *topology.Machine, reserved []NodeMemory) (*memory, error) {
	out := &memory{m: m, nodes: map[int]*pool{}}
	for _, n := range m.Nodes {
		p := &pool{allocatable: amounts{}}
		left := int64(n.Memory)
		for size, pages := range n.HugePages {
			p.allocatable[hugeName(size)] = int64(size) * pages
			left -= int64(size) * pages
		}
		p.allocatable[corev1.ResourceMemory] = left
		out.nodes[n.ID] = p
	}
	for _, r := range reserved {
		p := out.nodes[r.Node]
		if p == nil {
			return nil, fmt.Errorf("memory is reserved on NUMA node %d, which this machine has not", r.Node)
		}
		for name, q := range r.Limits {
			have := p.allocatable[name]
			if q.Value() > have {
				return nil, fmt.Errorf("%s of %s is reserved on NUMA node %d, which has %s", q.String(), name, r.Node, bytesOf(have))
			}
			p.allocatable[name] = have - q.Value()
		}
	}
	for _, p := range out.nodes {
		p.free = maps.Clone(p.allocatable)
	}
	return out, nil
}

func bytesOf(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// sums are the memory of a set of nodes.
func (m *memory) sums(s Nodes, name corev1.ResourceName) (allocatable, free int64) {
	for _, id := range s.list() {
		allocatable += m.nodes[id].allocatable[name]
		free += m.nodes[id].free[name]
	}
	return allocatable, free
}

// joins says whether a container may have memory of exactly these nodes. The kernel lets a process take from any of its
// nodes, so sets that overlap without being the same would let one container take what another was promised.
func (m *memory) joins(s Nodes) bool {
	for _, id := range s.list() {
		if p := m.nodes[id]; p.users > 0 && p.group != s {
			return false
		}
	}
	return true
}

// has says whether all that is asked for is there.
func (m *memory) has(s Nodes, ask amounts, again map[int]amounts) bool {
	for name, n := range ask {
		_, free := m.sums(s, name)
		for _, id := range s.list() {
			free += again[id][name]
		}
		if free < n {
			return false
		}
	}
	return true
}

// wishes are where memory of each kind can come from: from one set of nodes for all kinds, since a container has one
// set.
func (m *memory) wishes(ask amounts, again map[int]amounts) map[corev1.ResourceName]wish {
	out := map[corev1.ResourceName]wish{}
	ids := slices.Sorted(maps.Keys(m.nodes))
	for name, n := range ask {
		w := wish{}
		least := math.MaxInt
		Subsets(ids, func(s Nodes) {
			allocatable, _ := m.sums(s, name)
			if allocatable >= n {
				least = min(least, s.Count())
			}
			if m.has(s, ask, again) && m.joins(s) {
				w = append(w, Hint{Nodes: s})
			}
		})
		for i := range w {
			w[i].Preferred = w[i].Nodes.Count() == least
		}
		out[name] = w
	}
	return out
}

// choose is the set of nodes that a container's memory comes from: the one it was told, else the least that holds it,
// in which the one it was told is if it can be.
func (m *memory) choose(ask amounts, again map[int]amounts, told Nodes) (Nodes, error) {
	wishes := m.wishes(ask, again)
	best, bestKey := Nodes(0), [3]int{}
	for _, h := range wishes[sortedNames(ask)[0]] {
		key := [3]int{0, h.Nodes.Count(), spread(m.m, h.Nodes)}
		if told != 0 && h.Nodes&told != told {
			key[0] = 1
		}
		if best == 0 || slices.Compare(key[:], bestKey[:]) < 0 {
			best, bestKey = h.Nodes, key
		}
	}
	if best == 0 {
		return 0, fmt.Errorf("not enough memory on any NUMA nodes to satisfy request: %s", m.arithmetic(ask))
	}
	return best, nil
}

// arithmetic is what was asked for and what there is.
func (m *memory) arithmetic(ask amounts) string {
	var parts []string
	for _, name := range sortedNames(ask) {
		var have []string
		for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
			p := m.nodes[id]
			one := fmt.Sprintf("node %d: %s of %s", id, bytesOf(p.free[name]), bytesOf(p.allocatable[name]))
			if p.group.Count() > 1 {
				one += fmt.Sprintf(" (shared by nodes %v)", p.group.list())
			}
			have = append(have, one)
		}
		parts = append(parts, fmt.Sprintf("%s requested=%s, free %s", name, bytesOf(ask[name]), strings.Join(have, ", ")))
	}
	return strings.Join(parts, "; ")
}

// debit takes memory from the nodes, the lowest first, beside what can be used again. It returns what of each node was
// newly taken, and whether there was as much.
func (m *memory) debit(b Block, again map[int]amounts) (taken map[int]int64, ok bool) {
	taken = map[int]int64{}
	need := b.Bytes
	group := NodesOf(b.Nodes...)
	for _, id := range b.Nodes {
		need -= min(need, again[id][b.Resource])
	}
	for _, id := range b.Nodes {
		p := m.nodes[id]
		p.group, p.users = group, p.users+1
		use := min(need, p.free[b.Resource])
		p.free[b.Resource] -= use
		taken[id] = use
		need -= use
	}
	return taken, need == 0
}

func sortedNames(a amounts) []corev1.ResourceName { return slices.Sorted(maps.Keys(a)) }
