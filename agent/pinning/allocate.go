package pinning

import (
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// ask is what one container asks for.
type ask struct {
	container string
	init      bool // it ends before the others begin, who can have what it had
	sidecar   bool
	cpus      int // exclusive ones
	memory    amounts
	wishes    []Wish // of its devices
}

// given is what one container was given.
type given struct {
	Container string  `json:"container"`
	Init      bool    `json:"init,omitempty"`
	CPUs      string  `json:"cpus,omitempty"`
	Memory    []Block `json:"memory,omitempty"`
}

// assignment is what a pod was given.
type assignment struct {
	UID        types.UID `json:"uid"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	Containers []given   `json:"containers"`
}

// set is the container's CPUs. The file was checked when it was read.
func (g *given) set() cpuset.CPUSet {
	s, err := cpuset.Parse(g.CPUs)
	if err != nil {
		return cpuset.New()
	}
	return s
}

func (g *given) nodes() Nodes {
	var n Nodes
	for _, b := range g.Memory {
		n |= NodesOf(b.Nodes...)
	}
	return n
}

func (a *assignment) cpus() cpuset.CPUSet {
	out := cpuset.New()
	for i := range a.Containers {
		out = out.Union(a.Containers[i].set())
	}
	return out
}

// answers says whether the pod has what it asks for.
func (a *assignment) answers(asks []ask) bool {
	want := map[string]ask{}
	for _, k := range asks {
		if k.cpus > 0 || len(k.memory) > 0 {
			want[k.container] = k
		}
	}
	for i := range a.Containers {
		g := &a.Containers[i]
		k, ok := want[g.Container]
		have := amounts{}
		for _, b := range g.Memory {
			have[b.Resource] += b.Bytes
		}
		if !ok || g.set().Size() != k.cpus || g.Init != k.init || !maps.Equal(have, k.memory) {
			return false
		}
		delete(want, g.Container)
	}
	return len(want) == 0
}

// whole is what a pod asks for at the same time at most: its containers and sidecars together, or an init container
// with the sidecars that were started before it.
func whole(asks []ask) ask {
	run, most := ask{memory: amounts{}}, ask{memory: amounts{}}
	for _, k := range asks {
		if k.init {
			most.cpus = max(most.cpus, run.cpus+k.cpus)
			for name, n := range k.memory {
				most.memory[name] = max(most.memory[name], run.memory[name]+n)
			}
			continue
		}
		run.cpus += k.cpus
		for name, n := range k.memory {
			run.memory[name] += n
		}
	}
	most.cpus = max(most.cpus, run.cpus)
	for name, n := range run.memory {
		most.memory[name] = max(most.memory[name], n)
	}
	return most
}

// ledger is what is free while one pod is being served.
type ledger struct {
	by        *allocator
	free      cpuset.CPUSet
	memory    *memory
	again     cpuset.CPUSet   // of the pod's init containers
	againFrom map[int]amounts // memory of the pod's init containers, by node
}

// begin begins a pod.
func (l *ledger) begin() { l.again, l.againFrom = cpuset.New(), map[int]amounts{} }

// take books what a container has. It is false when there is not as much.
func (l *ledger) take(g *given) bool {
	cpus := g.set()
	if !cpus.IsSubsetOf(l.free.Union(l.again)) {
		return false
	}
	l.free = l.free.Difference(cpus)
	if g.Init {
		l.again = l.again.Union(cpus)
	} else {
		l.again = l.again.Difference(cpus)
	}
	for _, b := range g.Memory {
		for _, id := range b.Nodes {
			if l.memory.nodes[id] == nil {
				return false
			}
		}
		taken, ok := l.memory.debit(b, l.againFrom)
		if !ok {
			return false
		}
		l.keepMemory(g.Init, b, taken)
	}
	return true
}

// keepMemory notes what the pod's next containers can have of a block.
func (l *ledger) keepMemory(init bool, b Block, taken map[int]int64) {
	need := b.Bytes
	for _, id := range b.Nodes {
		if l.againFrom[id] == nil {
			if !init {
				continue
			}
			l.againFrom[id] = amounts{}
		}
		if init {
			l.againFrom[id][b.Resource] += taken[id]
			continue
		}
		use := min(need, l.againFrom[id][b.Resource])
		l.againFrom[id][b.Resource] -= use
		need -= use
	}
}

// tell asks all resources where they can come from, and decides.
func (l *ledger) tell(k ask) (Hint, error) {
	if l.by.cfg.Alignment == AlignNone {
		return Hint{}, nil
	}
	var wishes []wish
	var why []string
	if k.cpus > 0 {
		w := cpuWish(l.by.cfg.Machine, l.by.cfg.CPU, l.usable(), l.again, k.cpus)
		wishes = append(wishes, w)
		why = append(why, fmt.Sprintf("%d CPUs of %s", k.cpus, l.perNode()))
	}
	if len(k.memory) > 0 {
		for _, w := range l.memory.wishes(k.memory, l.againFrom) {
			wishes = append(wishes, w)
		}
		why = append(why, l.memory.arithmetic(k.memory))
	}
	for _, w := range k.wishes {
		wishes = append(wishes, w.Hints)
		why = append(why, w.What)
	}
	h, ok := l.by.align.merge(wishes)
	if !ok {
		return h, &Refusal{Reason: ReasonAffinity, Message: fmt.Sprintf(
			"Resources cannot be allocated with Topology locality (%s): %s", l.by.cfg.Alignment, strings.Join(why, "; "))}
	}
	if h.Nodes == l.by.align.all {
		h.Nodes = 0
	}
	return h, nil
}

// perNode is how many CPUs are free on each node.
func (l *ledger) perNode() string {
	var out []string
	for _, n := range l.by.cfg.Machine.Nodes {
		cpus := l.by.cfg.Machine.InNode(n.ID)
		out = append(out, fmt.Sprintf("node %d: %d free of %d", n.ID, l.usable().Union(l.again).Intersection(cpus).Size(), cpus.Size()))
	}
	return strings.Join(out, ", ")
}

// usable are the free CPUs, without those whose core is shared already when only whole cores are given out.
func (l *ledger) usable() cpuset.CPUSet {
	if !l.by.cfg.CPU.FullPCPUsOnly {
		return l.free
	}
	out := cpuset.New()
	for _, g := range l.by.cfg.Machine.Groups(core) {
		if g.IsSubsetOf(l.free) {
			out = out.Union(g)
		}
	}
	return out
}

// place gives a container what it asks for, near the nodes it was told.
func (l *ledger) place(k ask, told Nodes) (given, error) {
	g := given{Container: k.container, Init: k.init}
	if k.cpus > 0 {
		cpus, err := l.placeCPUs(k, told)
		if err != nil {
			return g, err
		}
		g.CPUs = cpus.String()
	}
	if len(k.memory) > 0 {
		nodes, err := l.memory.choose(k.memory, l.againFrom, told)
		if err != nil {
			return g, err
		}
		for _, name := range sortedNames(k.memory) {
			g.Memory = append(g.Memory, Block{Resource: name, Nodes: nodes.list(), Bytes: k.memory[name]})
		}
	}
	if !l.take(&g) {
		return g, fmt.Errorf("what container %s was to be given is not free", k.container)
	}
	return g, nil
}

func (l *ledger) placeCPUs(k ask, told Nodes) (cpuset.CPUSet, error) {
	free := l.usable()
	if l.by.cfg.CPU.FullPCPUsOnly {
		per := l.by.cfg.Machine.ThreadsPerCore()
		if k.cpus%per != 0 {
			return free, &Refusal{Reason: ReasonSMT, Message: fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", k.cpus, per)}
		}
		if have := free.Union(l.again).Size(); have < k.cpus {
			return free, &Refusal{Reason: ReasonSMT, Message: fmt.Sprintf(
				"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", have, k.cpus, per)}
		}
	}
	near := l.near(told)
	// What the pod's init containers had comes first: it is nobody else's already.
	n := min(k.cpus, l.again.Size())
	out, err := pick(l.by.cfg.Machine, l.by.cfg.CPU, l.again, near, n)
	if err != nil {
		return out, err
	}
	if free.Size() < k.cpus-n {
		return out, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", k.cpus, free.Size()+l.again.Size())
	}
	rest, err := pick(l.by.cfg.Machine, l.by.cfg.CPU, free, near, k.cpus-n)
	return out.Union(rest), err
}

// near are the CPUs of nodes, or of the sockets that the nodes are in.
func (l *ledger) near(nodes Nodes) cpuset.CPUSet {
	out, sockets := cpuset.New(), map[int]bool{}
	for _, c := range l.by.cfg.Machine.CPUs {
		if nodes.has(c.Node) {
			out = out.Union(cpuset.New(c.ID))
			sockets[c.Socket] = true
		}
	}
	if l.by.cfg.CPU.AlignBySocket {
		for _, c := range l.by.cfg.Machine.CPUs {
			if sockets[c.Socket] {
				out = out.Union(cpuset.New(c.ID))
			}
		}
	}
	return out
}
