// Package topology reads from sysfs how a machine is laid out: which hardware threads share a core, a last-level cache,
// a socket and a NUMA node, how far the nodes are from each other, and what memory each of them has.
package topology

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// CPU is a hardware thread that is online. Core, Cache and Socket are names of what it shares with others: each is the
// number of the lowest CPU in it, because the kernel's own numbers of cores repeat from socket to socket.
type CPU struct {
	ID, Core, Cache, Node, Socket int
}

// Node is a NUMA node.
type Node struct {
	ID        int
	Memory    uint64           // bytes, huge pages included
	HugePages map[uint64]int64 // pages of the pool by their size in bytes
	Distances map[int]int      // to each node by its ID, in the firmware's units: 10 is the node itself
}

// Machine is one machine's layout.
type Machine struct {
	CPUs  []CPU  // by ID
	Nodes []Node // by ID; those without CPUs too
}

// MaxNodes is how many NUMA nodes a machine may have here: sets of them are machine words.
const MaxNodes = 64

// Read reads the layout of the machine whose sysfs and procfs are in root: "/" for this machine.
func Read(root string) (*Machine, error) {
	r := reader{filepath.Join(root, "sys/devices/system")}
	online, err := r.cpus("cpu/online")
	if err != nil {
		return nil, fmt.Errorf("read CPU topology: %w", err)
	}
	m := &Machine{}
	of, err := r.nodes(m, filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return nil, fmt.Errorf("read NUMA topology: %w", err)
	}
	for _, id := range online.List() {
		c, err := r.cpu(id)
		if err != nil {
			return nil, fmt.Errorf("read topology of CPU %d: %w", id, err)
		}
		c.Node = of[id]
		m.CPUs = append(m.CPUs, c)
	}
	if len(m.CPUs) == 0 {
		return nil, errors.New("read CPU topology: no CPU is online")
	}
	return m, nil
}

// reader reads below /sys/devices/system.
type reader struct{ dir string }

func (r reader) text(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(r.dir, path))
	return string(bytes.TrimSpace(b)), err
}

func (r reader) cpus(path string) (cpuset.CPUSet, error) {
	s, err := r.text(path)
	if err != nil {
		return cpuset.CPUSet{}, err
	}
	set, err := cpuset.Parse(s)
	if err != nil {
		return cpuset.CPUSet{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return set, nil
}

// lowest is the lowest CPU of a list, and own when the file is not there: older kernels and some machines lack some of
// them.
func (r reader) lowest(own int, paths ...string) (int, error) {
	for _, p := range paths {
		set, err := r.cpus(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		if set.Size() > 0 {
			return set.List()[0], nil
		}
	}
	return own, nil
}

func (r reader) cpu(id int) (CPU, error) {
	c := CPU{ID: id}
	dir := fmt.Sprintf("cpu/cpu%d/", id)
	var err error
	// The kernel has new names for these lists since 5.3, and keeps the old ones.
	if c.Core, err = r.lowest(id, dir+"topology/core_cpus_list", dir+"topology/thread_siblings_list"); err != nil {
		return c, err
	}
	if c.Socket, err = r.lowest(0, dir+"topology/package_cpus_list", dir+"topology/core_siblings_list"); err != nil {
		return c, err
	}
	c.Cache, err = r.cache(id, c.Socket)
	return c, err
}

// cache is the group that shares the last level of cache. A machine that tells of none is taken for one with a cache a
// socket.
func (r reader) cache(id, socket int) (int, error) {
	dir := fmt.Sprintf("cpu/cpu%d/cache", id)
	entries, err := os.ReadDir(filepath.Join(r.dir, dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	last, group := 0, socket
	for _, e := range entries {
		s, err := r.text(dir + "/" + e.Name() + "/level")
		if err != nil {
			continue // "uevent" and the like
		}
		level, err := strconv.Atoi(s)
		// What only one core has is not shared with other cores, so that it is no group of cores.
		if err != nil || level < 3 || level <= last {
			continue
		}
		if group, err = r.lowest(socket, dir+"/"+e.Name()+"/shared_cpu_list"); err != nil {
			return 0, err
		}
		last = level
	}
	return group, nil
}

// nodes reads the NUMA nodes into m, and returns the node of each CPU. A kernel without NUMA has one node that is
// everything.
func (r reader) nodes(m *Machine, meminfo string) (map[int]int, error) {
	online, err := r.cpus("node/online") // the same syntax
	if errors.Is(err, fs.ErrNotExist) {
		return map[int]int{}, r.onlyNode(m, meminfo)
	}
	if err != nil {
		return nil, err
	}
	of := map[int]int{}
	ids := online.List()
	for _, id := range ids {
		if id >= MaxNodes {
			return nil, fmt.Errorf("node %d: only the numbers below %d are supported", id, MaxNodes)
		}
		n, err := r.node(id, ids)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", id, err)
		}
		m.Nodes = append(m.Nodes, n)
		cpus, err := r.cpus(fmt.Sprintf("node/node%d/cpulist", id))
		if err != nil {
			return nil, err
		}
		for _, c := range cpus.List() {
			of[c] = id
		}
	}
	return of, nil
}

func (r reader) onlyNode(m *Machine, meminfo string) error {
	b, err := os.ReadFile(meminfo)
	if err != nil {
		return err
	}
	n := Node{Distances: map[int]int{0: 10}}
	if n.Memory, err = memTotal(b); err != nil {
		return err
	}
	n.HugePages, err = hugePages(filepath.Join(filepath.Dir(filepath.Dir(r.dir)), "kernel/mm/hugepages"))
	m.Nodes = []Node{n}
	return err
}

func (r reader) node(id int, ids []int) (Node, error) {
	n := Node{ID: id, Distances: map[int]int{}}
	dir := filepath.Join(r.dir, fmt.Sprintf("node/node%d", id))
	b, err := os.ReadFile(dir + "/meminfo")
	if err != nil {
		return n, err
	}
	if n.Memory, err = memTotal(b); err != nil {
		return n, err
	}
	if b, err = os.ReadFile(dir + "/distance"); err != nil {
		return n, err
	}
	// One column for each node that is online, in their order.
	for i, f := range strings.Fields(string(b)) {
		d, err := strconv.Atoi(f)
		if err != nil || i >= len(ids) {
			return n, fmt.Errorf("parse distances %q of %d nodes", bytes.TrimSpace(b), len(ids))
		}
		n.Distances[ids[i]] = d
	}
	n.HugePages, err = hugePages(dir + "/hugepages")
	return n, err
}

// memTotal finds "MemTotal: 1234 kB", which a node's file begins with "Node 0".
func memTotal(meminfo []byte) (uint64, error) {
	for line := range bytes.Lines(meminfo) {
		_, rest, ok := bytes.Cut(line, []byte("MemTotal:"))
		if !ok {
			continue
		}
		f := bytes.Fields(rest)
		if len(f) == 0 {
			break
		}
		kib, err := strconv.ParseUint(string(f[0]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse MemTotal: %w", err)
		}
		if bits.LeadingZeros64(kib) < 10 {
			return 0, fmt.Errorf("parse MemTotal: %d kB is more than there can be", kib)
		}
		return kib << 10, nil
	}
	return 0, errors.New("no MemTotal in meminfo")
}

// hugePages reads the pools of a node: hugepages-2048kB/nr_hugepages.
func hugePages(dir string) (map[uint64]int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[uint64]int64{}
	for _, e := range entries {
		s, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), "kB"), "hugepages-")
		kib, err := strconv.ParseUint(s, 10, 32)
		if !ok || err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse %s/nr_hugepages: %w", e.Name(), err)
		}
		if n > 0 {
			out[kib<<10] = n
		}
	}
	return out, nil
}

// All is every CPU.
func (m *Machine) All() cpuset.CPUSet { return m.where(func(CPU) bool { return true }) }

// InNode is every CPU of a NUMA node.
func (m *Machine) InNode(id int) cpuset.CPUSet {
	return m.where(func(c CPU) bool { return c.Node == id })
}

func (m *Machine) where(is func(CPU) bool) cpuset.CPUSet {
	var out []int
	for _, c := range m.CPUs {
		if is(c) {
			out = append(out, c.ID)
		}
	}
	return cpuset.New(out...)
}

// Groups are the CPUs that have the same name by key, in the order of the names.
func (m *Machine) Groups(key func(CPU) int) []cpuset.CPUSet {
	of := map[int][]int{}
	var names []int
	for _, c := range m.CPUs {
		k := key(c)
		if of[k] == nil {
			names = append(names, k)
		}
		of[k] = append(of[k], c.ID)
	}
	slices.Sort(names)
	var out []cpuset.CPUSet
	for _, k := range names {
		out = append(out, cpuset.New(of[k]...))
	}
	return out
}

// ThreadsPerCore is how many threads the largest core has.
func (m *Machine) ThreadsPerCore() int {
	n := 1
	for _, g := range m.Groups(func(c CPU) int { return c.Core }) {
		n = max(n, g.Size())
	}
	return n
}

// Find returns a CPU by its number.
func (m *Machine) Find(id int) (CPU, bool) {
	i, ok := slices.BinarySearchFunc(m.CPUs, id, func(c CPU, id int) int { return c.ID - id })
	if !ok {
		return CPU{}, false
	}
	return m.CPUs[i], true
}

// Distance is that between two nodes; nodes that say nothing of each other are as far apart as it gets.
func (m *Machine) Distance(a, b int) int {
	for _, n := range m.Nodes {
		if d, ok := n.Distances[b]; ok && n.ID == a {
			return d
		}
	}
	return 255
}
