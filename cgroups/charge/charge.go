// Package charge reads how much memory is charged to a control group, and what for, as it is now. It is for who decides
// by it what has to end, where a figure of a second ago is a wrong one.
//
// How much a group has, the kernel counts at once. What for, it counts by processor, and sums up for memory.stat when
// that is read; but only where enough has changed, by an account that can miss changes: while a group is summed up, one
// below it can be marked as changed, and what changes there from then on is not told to those above, as they are taken
// to be marked as well (memcg_rstat_updated). Nothing but a timer of two seconds has them look then, or somebody who
// reads the group below. Two seconds of file cache that is being filled look like memory in use. So where a group has
// more than the kernel knows the use of, the groups below it are asked, and say it better.
package charge

import (
	"errors"
	"io/fs"
	"math"
	"runtime"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Unlimited is the limit of a group that has none.
const Unlimited = math.MaxInt64

const (
	// depth is how far below a group is asked: of the group of all pods the classes, the pods, and the containers. What
	// containers have made is theirs.
	depth = 3
	// mostAsked is how many groups are asked for one: a container may make many.
	mostAsked = 1024
	// share is what part of the difference a group has to have at least to be asked: smaller ones explain nothing.
	share = 16
	// unsettled is what a group may have more than is known the use of, and perProcessor as much again for each: what a
	// processor has charged ahead, and what is not summed up because it is little.
	unsettled    = 16 << 20
	perProcessor = 2 << 20
)

// Memory is what a group has with all that is below it, in bytes.
type Memory struct {
	Usage int64 // with file cache and kernel objects
	// InactiveFile and ActiveFile are cache, which the kernel can drop.
	InactiveFile int64
	ActiveFile   int64
	// Slab is kernel objects that it can drop. Version 1 does not tell.
	Slab int64
	// Doubt is what of Usage nobody knows the use of yet: it may be cache as well.
	Doubt int64

	known  int64 // what of Usage the use is known of, but for
	kernel int64 // kernel objects, of which version 1 has an account of its own
	limit  int64
}

// WorkingSet is kubelet's measure: what is in use but for cache that was not used lately.
func (m Memory) WorkingSet() int64 { return max(0, m.Usage-m.InactiveFile) }

// Unreclaimable is what the kernel cannot give to others, the counterpart of MemAvailable for a group: all file cache
// can be dropped, be it active or not. What of it has to be written first counts as well, as in MemAvailable: who
// writes much is slowed down for it, and his end would not have it written any sooner.
func (m Memory) Unreclaimable() int64 {
	return max(0, m.Usage-add(m.Slab, add(m.InactiveFile, m.ActiveFile)))
}

// Read reads a group by its directory in the hierarchy of memory, of either version of control groups. A group that is
// not there is fs.ErrNotExist.
func Read(dir string) (Memory, error) {
	r := reader{left: mostAsked, tolerated: unsettled + perProcessor*int64(runtime.NumCPU())}
	return r.read(dir, depth)
}

// ReadLimited is Read with the group's own limit, or [Unlimited].
func ReadLimited(dir string) (m Memory, limit int64, err error) {
	if m, err = Read(dir); err != nil {
		return Memory{}, 0, err
	}
	switch limit, err := readNumber(dir + "/memory.max"); {
	case err == nil:
		return m, limit, nil
	case errors.Is(err, fs.ErrNotExist): // version 1, or the root of version 2
		return m, m.limit, nil
	default:
		return Memory{}, 0, err
	}
}

type reader struct {
	left      int // groups that may still be asked
	tolerated int64
}

func (r *reader) read(dir string, below int) (Memory, error) {
	m, err := r.once(dir)
	if err == nil && m.Doubt > 0 && below > 0 {
		r.ask(dir, below, &m)
	}
	return m, err
}

// once reads the group's own files. They cannot be read at one moment. What was read into the cache between them would
// look like memory that is in use, which is gigabytes when others have the processor: so the usage is the lesser of
// that before and that after.
func (r *reader) once(dir string) (Memory, error) {
	usage, err := openUsage(dir)
	if err != nil {
		return Memory{}, err
	}
	defer usage.close()
	before, err := usage.read()
	if err != nil {
		return Memory{}, err
	}
	// On the stack: who asks many groups does so because memory runs out, and garbage costs a collection just then.
	var room [largest]byte
	n, err := kernfs.ReadInto(dir+"/memory.stat", room[:])
	if err != nil {
		return Memory{}, err
	}
	s := parseStat(room[:n])
	m := Memory{InactiveFile: s.inactiveFile, ActiveFile: s.activeFile, Slab: s.slab, known: s.known(), limit: s.limit}
	if !usage.open() { // the root of version 2 has no usage
		m.Usage = add(s.anon, s.file)
		return m, nil
	}
	after, err := usage.read()
	if err != nil {
		return Memory{}, err
	}
	m.Usage = min(before, after)
	if s.v1 && m.Usage-m.known > r.tolerated {
		if n, err := readNumber(dir + "/memory.kmem.usage_in_bytes"); err == nil { // kernels can be without
			m.kernel = n
		}
	}
	m.doubt(r.tolerated)
	return m, nil
}

func (m *Memory) doubt(tolerated int64) {
	if m.Doubt = m.Usage - add(m.known, m.kernel); m.Doubt <= tolerated {
		m.Doubt = 0
	}
}

// ask has the groups below say what the group has, if they know more of it.
func (r *reader) ask(dir string, below int, m *Memory) {
	var names kernfs.Reader
	opened, groups := names.List(dir)
	opened.Close()
	var sum Memory
	for _, name := range groups {
		if r.left <= 0 {
			break
		}
		r.left--
		path := dir + "/" + name
		if usage, err := readUsage(path); err != nil || usage < m.Doubt/share {
			continue
		}
		if one, err := r.read(path, below-1); err == nil {
			sum.InactiveFile = add(sum.InactiveFile, one.InactiveFile)
			sum.ActiveFile = add(sum.ActiveFile, one.ActiveFile)
			sum.Slab = add(sum.Slab, one.Slab)
			sum.known = add(sum.known, one.known)
		}
	}
	if sum.known > m.known {
		m.InactiveFile, m.ActiveFile, m.Slab, m.known = sum.InactiveFile, sum.ActiveFile, sum.Slab, sum.known
		m.doubt(r.tolerated)
	}
}

// readUsage reads how much a group has; nothing, of the root of version 2.
func readUsage(dir string) (int64, error) {
	f, err := openUsage(dir)
	if err != nil {
		return 0, err
	}
	defer f.close()
	return f.read()
}

// openUsage opens the file of how much a group has. The root of version 2 has none.
func openUsage(dir string) (number, error) {
	for _, file := range []string{"/memory.current", "/memory.usage_in_bytes"} {
		f, err := openNumber(dir + file)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return number{}, nil
}

// add adds figures that are not negative, and does not overflow.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
