package signal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/berth-node/berth/cgroups/charge"
)

// MemoryReading is which figure memory.available is.
type MemoryReading string

const (
	// Kernel is the kernel's own estimate of what can be had without swapping, MemAvailable, and what pods may swap.
	Kernel MemoryReading = "kernel"
	// Kubelet is the capacity less the working set of the root group: usage without the inactive file cache. The active
	// file cache counts as used, although the kernel gives it back too, and swap counts for nothing.
	Kubelet MemoryReading = "kubelet"
)

// Paths are where a node's figures are read. A signal whose path is "" is not read.
type Paths struct {
	Memory      MemoryReading // "" is Kernel
	Proc        string        // "" is /proc
	MemoryRoot  string        // directory of the root group with the memory controller; needed for Kubelet
	Allocatable string        // directory of the group of all pods
	Swap        string        // directory of the v2 group of those pods that may swap; "": none may
	NodeFS      string        // any directory in the file system
	ImageFS     string
	ContainerFS string
}

// Node reads what a node has left. Its methods may be called by anybody at any time.
type Node struct {
	paths Paths
	disks map[string]*disk // by directory: signals of one directory are of one reading
	swap  *swappable       // nil: no pod may swap
}

// NewNode reads from these paths.
func NewNode(p Paths) *Node {
	if p.Proc == "" {
		p.Proc = "/proc"
	}
	if p.Memory == "" {
		p.Memory = Kernel
	}
	n := &Node{paths: p, disks: map[string]*disk{}}
	if p.Swap != "" && p.Memory == Kernel {
		n.swap = &swappable{dir: p.Swap}
	}
	for _, dir := range []string{p.NodeFS, p.ImageFS, p.ContainerFS} {
		if dir != "" && n.disks[dir] == nil {
			n.disks[dir] = newDisk(dir)
		}
	}
	return n
}

// Read reads all signals. What cannot be read is missing from the answer, and named in the error.
func (n *Node) Read(ctx context.Context) (Readings, error) {
	out, err1 := n.Memory()
	pids, err2 := n.PIDs()
	disks, err3 := n.Disks(ctx)
	maps.Copy(out, pids)
	maps.Copy(out, disks)
	return out, errors.Join(err1, err2, err3)
}

// Memory reads the signals of memory, which takes some microseconds.
func (n *Node) Memory() (Readings, error) {
	out := Readings{}
	r, swap, err1 := n.memory()
	if err1 != nil {
		err1 = fmt.Errorf("read %s: %w", MemoryAvailable, err1)
	} else {
		out[MemoryAvailable] = r
	}
	if n.paths.Allocatable == "" {
		return out, err1
	}
	r, limited, err2 := n.allocatable()
	r.Available = min(add(r.Available, swap), r.Capacity)
	switch {
	case err2 != nil:
		err2 = fmt.Errorf("read %s: %w", AllocatableMemoryAvailable, err2)
	case limited:
		out[AllocatableMemoryAvailable] = r
	}
	return out, errors.Join(err1, err2)
}

// PIDs reads the signal of process IDs.
func (n *Node) PIDs() (Readings, error) {
	r, err := n.pids()
	if err != nil {
		return Readings{}, fmt.Errorf("read %s: %w", PIDAvailable, err)
	}
	return Readings{PIDAvailable: r}, nil
}

// Disks reads the signals of file systems, those of one file system once. A file system that does not answer is missing
// from the answer.
func (n *Node) Disks(ctx context.Context) (Readings, error) {
	out := Readings{}
	devices := map[uint64]answer{}
	var errs []error
	for _, fs := range []struct {
		dir           string
		bytes, inodes Signal
	}{
		{n.paths.NodeFS, NodeFsAvailable, NodeFsInodesFree},
		{n.paths.ImageFS, ImageFsAvailable, ImageFsInodesFree},
		{n.paths.ContainerFS, ContainerFsAvailable, ContainerFsInodesFree},
	} {
		if fs.dir == "" {
			continue
		}
		a := n.disks[fs.dir].read(ctx)
		if a.err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", fs.bytes, a.err))
			continue
		}
		if first, ok := devices[a.device]; ok {
			a = first
		}
		devices[a.device] = a
		out[fs.bytes] = a.bytes
		if a.inodes.Capacity > 0 { // btrfs and others have no fixed number of inodes
			out[fs.inodes] = a.inodes
		}
	}
	return out, errors.Join(errs...)
}

// memory is with what of it is swap that pods may use.
func (n *Node) memory() (r Reading, swap int64, err error) {
	now := time.Now()
	var room [usual]byte
	info, err := readFigures(n.paths.Proc+"/meminfo", room[:])
	if err != nil {
		return Reading{}, 0, err
	}
	total, ok := info.find("MemTotal")
	if !ok {
		return Reading{}, 0, errors.New("no MemTotal in meminfo")
	}
	if n.paths.Memory == Kernel {
		available, ok := info.find("MemAvailable")
		if !ok {
			return Reading{}, 0, errors.New("no MemAvailable in meminfo")
		}
		swap = n.swap.now(info.get("SwapFree") << 10)
		return Reading{Available: add(available<<10, swap), Capacity: total << 10, Time: now}, swap, nil
	}
	g, err := charge.Read(n.paths.MemoryRoot)
	if err != nil {
		return Reading{}, 0, err
	}
	return Reading{Available: max(0, total<<10-g.WorkingSet()), Capacity: total << 10, Doubt: g.Doubt, Time: now}, 0, nil
}

// allocatable is what the group of all pods has left of its limit; false when it has no limit.
func (n *Node) allocatable() (r Reading, limited bool, err error) {
	now := time.Now()
	g, limit, err := charge.ReadLimited(n.paths.Allocatable)
	if err != nil || limit == charge.Unlimited {
		return Reading{}, false, err
	}
	used := g.WorkingSet()
	if n.paths.Memory == Kernel {
		used = g.Unreclaimable()
	}
	return Reading{Available: max(0, limit-used), Capacity: limit, Doubt: g.Doubt, Time: now}, true, nil
}

// pids counts as kubelet does: threads are tasks and have IDs as well, and the lower of the kernel's two limits is the
// one that counts.
func (n *Node) pids() (Reading, error) {
	now := time.Now()
	var limits [2]int64
	for i, name := range []string{"/sys/kernel/pid_max", "/sys/kernel/threads-max"} {
		var err error
		if limits[i], err = readNumber(n.paths.Proc + name); err != nil {
			return Reading{}, err
		}
	}
	var room [short]byte
	text, err := readFile(n.paths.Proc+"/loadavg", room[:])
	if err != nil {
		return Reading{}, err
	}
	tasks, err := parseTasks(string(text))
	if err != nil {
		return Reading{}, err
	}
	limit := min(limits[0], limits[1])
	return Reading{Available: max(0, limit-tasks), Capacity: limit, Time: now}, nil
}
