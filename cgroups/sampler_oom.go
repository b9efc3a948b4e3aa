package cgroups

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// oomBelow counts the OOM kills of a v1 group and of those below it. The kernel counts each in the group it was killed
// in alone, and forgets the count with the group, so what a group had when it went is kept here.
type oomBelow struct {
	dir     string
	dirFD   int
	control int // memory.oom_control, -1 where there is none
	own     uint64
	links   uint64 // of the directory, when the groups below were listed
	kids    map[string]*oomBelow
	lost    uint64 // kills in groups below that are gone
}

// noLinks makes the next look list the groups below.
const noLinks = math.MaxUint64

// openOOM is nil for a group that has no such file.
func openOOM(dir string) *oomBelow {
	open := func(path string, flags int) int {
		fd, err := kernfs.Retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
		if err != nil {
			return -1
		}
		return fd
	}
	o := &oomBelow{dir: dir, links: noLinks, dirFD: open(dir, unix.O_PATH|unix.O_DIRECTORY), control: open(dir+"/memory.oom_control", unix.O_RDONLY)}
	if o.dirFD < 0 || o.control < 0 {
		o.close()
		return nil
	}
	return o
}

// alone leaves the groups below out.
func (o *oomBelow) alone() {
	if o == nil {
		return
	}
	for _, k := range o.kids {
		k.close()
	}
	if o.dirFD >= 0 {
		unix.Close(o.dirFD)
	}
	o.dirFD, o.kids, o.lost = -1, nil, 0
}

func (o *oomBelow) close() {
	if o == nil {
		return
	}
	for _, fd := range []int{o.dirFD, o.control} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	for _, k := range o.kids {
		k.close()
	}
	o.dirFD, o.control, o.kids = -1, -1, nil
}

// kills is the count as it is now. A group that is gone gives ENODEV.
func (o *oomBelow) kills(s *Sampler) (uint64, error) {
	data, err := s.pread(o.control)
	if err != nil {
		return 0, err
	}
	o.own = field(data, "oom_kill") // kernels before 4.13 have no such line
	if o.dirFD < 0 {
		return o.own, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(o.dirFD, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", o.dir, err)
	}
	// A cgroup's directory has a link for each group in it, so that it need not be listed to see that none came or
	// went.
	links := uint64(st.Nlink) // 32 bits on arm64, 64 on amd64
	if links != o.links {
		if err := o.list(); err != nil {
			return 0, err
		}
		o.links = links
	}
	sum := o.own + o.lost
	for name, k := range o.kids {
		n, err := k.kills(s)
		if errors.Is(err, unix.ENODEV) {
			o.drop(name)
			o.links = noLinks // another one may have come in its place
			n, err = k.total(), nil
		}
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// total is the last count of a group and those below it.
func (o *oomBelow) total() uint64 {
	sum := o.own + o.lost
	for _, k := range o.kids {
		sum += k.total()
	}
	return sum
}

func (o *oomBelow) drop(name string) {
	k := o.kids[name]
	o.lost += k.total()
	delete(o.kids, name)
	lost := k.total()
	k.close()
	k.own, k.lost = lost, 0
}

func (o *oomBelow) list() error {
	names, err := subdirs(o.dir)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, n := range names {
		there[n] = true
		if _, known := o.kids[n]; known {
			continue
		}
		if k := openOOM(o.dir + "/" + n); k != nil {
			if o.kids == nil {
				o.kids = map[string]*oomBelow{}
			}
			o.kids[n] = k
		}
	}
	for n := range o.kids {
		if !there[n] {
			o.drop(n)
		}
	}
	return nil
}
