package pinning

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/berth-node/berth/agent/topology"
)

// CPUOptions are the ways in which the static policy can be told to choose CPUs.
type CPUOptions struct {
	FullPCPUsOnly            bool // whole cores only, so that no two containers share one
	DistributeAcrossNUMA     bool // evenly over NUMA nodes when one is not enough, not one full after the other
	DistributeAcrossCores    bool // threads of as many cores as there are
	AlignBySocket            bool // a socket's NUMA nodes are as good as one
	StrictReservation        bool // reserved CPUs are nobody's, not the shared pool's
	PreferAlignByUncoreCache bool // a last-level cache's CPUs together where that can be
}

// picker takes CPUs out of those that are free.
type picker struct {
	m       *topology.Machine
	opts    CPUOptions
	free    cpuset.CPUSet
	chosen  cpuset.CPUSet
	missing int
}

// pick chooses n of the free CPUs, those of near before all others, so that as few sockets, nodes and cores are broken
// as can be.
func pick(m *topology.Machine, opts CPUOptions, free cpuset.CPUSet, near cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if free.Size() < n {
		return cpuset.CPUSet{}, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", n, free.Size())
	}
	out := cpuset.New()
	if here := free.Intersection(near); here.Size() > 0 {
		out = pickFrom(m, opts, here, min(n, here.Size()))
	}
	if rest := n - out.Size(); rest > 0 {
		out = out.Union(pickFrom(m, opts, free.Difference(near), rest))
	}
	return out, nil
}

// pickFrom chooses n of free, which has as many.
func pickFrom(m *topology.Machine, opts CPUOptions, free cpuset.CPUSet, n int) cpuset.CPUSet {
	if opts.DistributeAcrossNUMA {
		if out, ok := distribute(m, opts, free, n); ok {
			return out
		}
	}
	p := &picker{m: m, opts: opts, free: free, missing: n}
	if opts.DistributeAcrossCores {
		p.acrossCores()
		return p.chosen
	}
	p.packed()
	return p.chosen
}

func (p *picker) take(cpus cpuset.CPUSet) {
	p.chosen, p.free = p.chosen.Union(cpus), p.free.Difference(cpus)
	p.missing -= cpus.Size()
}

func socket(c topology.CPU) int { return c.Socket }
func node(c topology.CPU) int   { return c.Node }
func cache(c topology.CPU) int  { return c.Cache }
func core(c topology.CPU) int   { return c.Core }

// packed takes whole groups as long as the rest needs one whole, the largest kind first, and then single threads.
func (p *picker) packed() {
	levels := []func(topology.CPU) int{socket, node}
	if len(p.m.Groups(node)) < len(p.m.Groups(socket)) {
		levels = []func(topology.CPU) int{node, socket}
	}
	if p.opts.PreferAlignByUncoreCache {
		levels = append(levels, cache)
	}
	for _, level := range append(levels, core) {
		for p.missing > 0 {
			whole, ok := p.wholeGroup(level)
			if !ok {
				break
			}
			p.take(whole)
		}
	}
	for p.missing > 0 {
		p.take(cpuset.New(p.order(p.free.List())[0]))
	}
}

// wholeGroup is the best group of a kind of which nothing is taken, and which is not more than is missing.
func (p *picker) wholeGroup(level func(topology.CPU) int) (cpuset.CPUSet, bool) {
	whole := map[int]cpuset.CPUSet{}
	var first []int
	for _, g := range p.m.Groups(level) {
		if g.Size() <= p.missing && g.IsSubsetOf(p.free) {
			whole[g.List()[0]] = g
			first = append(first, g.List()[0])
		}
	}
	if len(first) == 0 {
		return cpuset.CPUSet{}, false
	}
	return whole[p.order(first)[0]], true
}

// order sorts CPUs by how little is broken by taking them: where some are taken already comes first, then where the
// least is free, so that large free groups stay whole for those who need them.
func (p *picker) order(cpus []int) []int {
	// How many are free, and how many were chosen, in the group of each CPU.
	type count struct{ free, chosen int }
	counts := func(level func(topology.CPU) int) map[int]count {
		out := map[int]count{}
		for _, c := range p.m.CPUs {
			k := level(c)
			n := out[k]
			if p.free.Contains(c.ID) {
				n.free++
			}
			if p.chosen.Contains(c.ID) {
				n.chosen++
			}
			out[k] = n
		}
		return out
	}
	levels := []func(topology.CPU) int{socket, node}
	if p.opts.PreferAlignByUncoreCache {
		levels = append(levels, cache)
	}
	levels = append(levels, core)
	var by []map[int]count
	for _, l := range levels {
		by = append(by, counts(l))
	}
	slices.SortFunc(cpus, func(a, b int) int {
		x, _ := p.m.Find(a)
		y, _ := p.m.Find(b)
		for i, l := range levels {
			m, n := by[i][l(x)], by[i][l(y)]
			// Beside what this container has already; else where it all fits, and there the fullest.
			if d := cmp.Compare(min(n.chosen, 1), min(m.chosen, 1)); d != 0 {
				return d
			}
			if fits, other := m.free >= p.missing, n.free >= p.missing; fits != other {
				if fits {
					return -1
				}
				return 1
			}
			if d := cmp.Compare(m.free, n.free); d != 0 {
				return d
			}
		}
		return a - b
	})
	return cpus
}

// acrossCores takes one thread of each core in turn.
func (p *picker) acrossCores() {
	for p.missing > 0 {
		used := map[int]int{}
		for _, id := range p.chosen.List() {
			c, _ := p.m.Find(id)
			used[c.Core]++
		}
		best, least := -1, 0
		for _, id := range p.free.List() {
			c, _ := p.m.Find(id)
			if best < 0 || used[c.Core] < least {
				best, least = id, used[c.Core]
			}
		}
		p.take(cpuset.New(best))
	}
}

// distribute takes as evenly as can be from the fewest NUMA nodes that have enough together. ok is false when one node
// has, or when no set of nodes has an even part each.
func distribute(m *topology.Machine, opts CPUOptions, free cpuset.CPUSet, n int) (out cpuset.CPUSet, ok bool) {
	unit := 1 // what is taken from a node at once
	if opts.FullPCPUsOnly {
		unit = m.ThreadsPerCore()
	}
	freeIn := map[int]int{}
	var ids []int
	for _, nd := range m.Nodes {
		if f := free.Intersection(m.InNode(nd.ID)).Size(); f > 0 {
			freeIn[nd.ID] = f
			ids = append(ids, nd.ID)
		}
	}
	found, best := Nodes(0), 0
	Subsets(ids, func(s Nodes) {
		if found != 0 && s.Count() > found.Count() {
			return
		}
		part := n / s.Count() / unit * unit
		total, most := 0, 0
		for _, id := range s.list() {
			if freeIn[id] < part {
				return
			}
			total += freeIn[id]
			most = max(most, freeIn[id])
		}
		// Of sets that do, the one that leaves its nodes the most alike.
		if total >= n && (found == 0 || most*s.Count()-total < best) {
			found, best = s, most*s.Count()-total
		}
	})
	if found.Count() < 2 {
		return cpuset.CPUSet{}, false
	}
	parts := map[int]int{}
	rest := n
	for _, id := range found.list() {
		parts[id] = n / found.Count() / unit * unit
		rest -= parts[id]
	}
	for _, id := range found.list() {
		more := min(unit, rest, freeIn[id]-parts[id])
		parts[id] += more
		rest -= more
	}
	plain := opts
	plain.DistributeAcrossNUMA = false
	for _, id := range found.list() {
		here := free.Intersection(m.InNode(id))
		more := min(rest, here.Size()-parts[id]) // what the others had no room for
		rest -= more
		out = out.Union(pickFrom(m, plain, here, parts[id]+more))
	}
	return out, true
}

// cpuWish is where n exclusive CPUs can come from, out of what is free. must are CPUs of the pod that it is to use
// again.
func cpuWish(m *topology.Machine, opts CPUOptions, free, must cpuset.CPUSet, n int) wish {
	out := wish{}
	least, leastSockets := math.MaxInt, math.MaxInt
	var ids []int
	for _, nd := range m.Nodes {
		ids = append(ids, nd.ID)
	}
	var sizes []int // sockets of each hint
	Subsets(ids, func(s Nodes) {
		all, sockets := cpuset.New(), map[int]bool{}
		for _, id := range s.list() {
			all = all.Union(m.InNode(id))
		}
		for _, id := range all.List() {
			c, _ := m.Find(id)
			sockets[c.Socket] = true
		}
		if all.Size() >= n {
			least, leastSockets = min(least, s.Count()), min(leastSockets, len(sockets))
		}
		again := all.Intersection(must)
		if again.Size() < min(must.Size(), n) || free.Union(must).Intersection(all).Size() < n {
			return
		}
		out = append(out, Hint{Nodes: s})
		sizes = append(sizes, len(sockets))
	})
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == least
		if opts.AlignBySocket {
			out[i].Preferred = sizes[i] == leastSockets
		}
	}
	return out
}

// reserve is which CPUs the node keeps for itself when it was only said how many: the first cores of the first socket.
func reserve(m *topology.Machine, n int) (cpuset.CPUSet, error) {
	return pick(m, CPUOptions{}, m.All(), cpuset.New(), n)
}
