package cgroups

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// WorkingSet is what a group has of the memory, as [Memory.WorkingSet], by reading the two files that tell: for who
// asks all groups at once and has no time. A group that is not there is fs.ErrNotExist.
func WorkingSet(h *Hierarchy, path string) (uint64, error) {
	m, err := memoryNow(h, path)
	return m.usage - min(m.usage, m.inactive), err
}

// Unreclaimable is what a group has of the memory that the kernel cannot take back by dropping file cache: unlike
// the working set, cache that is in use does not count.
func Unreclaimable(h *Hierarchy, path string) (uint64, error) {
	m, err := memoryNow(h, path)
	return m.usage - min(m.usage, m.inactive+m.active), err
}

// Taken is [Unreclaimable] with what the group has in swap: where swap counts as memory that is left, who was swapped
// out has taken as much as who was not. v1 does not tell it apart, and kernels without accounts of swap do not tell
// it.
func Taken(h *Hierarchy, path string) (uint64, error) {
	used, err := Unreclaimable(h, path)
	if err != nil || h.mode != Unified {
		return used, err
	}
	swap, err := readNumber(h.Dir("memory", clean(path)) + "/memory.swap.current")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	return used + swap, nil
}

// memoryFigures are read one after the other. What was read into the cache meanwhile is not to look like memory
// that is in use: the usage is the lesser of that before and that after.
type memoryFigures struct{ usage, inactive, active uint64 }

func memoryNow(h *Hierarchy, path string) (memoryFigures, error) {
	usage, prefix := "memory.current", ""
	if h.mode != Unified {
		usage, prefix = "memory.usage_in_bytes", "total_"
	}
	dir, err := controllerDir(h, "memory", path)
	if err != nil {
		return memoryFigures{}, err
	}
	current, err := openNumber(dir + "/" + usage)
	if err != nil {
		return memoryFigures{}, err
	}
	defer current.close()
	used, err := current.read()
	if err != nil {
		return memoryFigures{}, err
	}
	// On the stack: who asks all groups at once does so because memory runs out, and garbage costs a collection
	// just then.
	var buf [16 << 10]byte
	n, err := kernfs.ReadInto(dir+"/memory.stat", buf[:])
	if err != nil {
		return memoryFigures{}, err
	}
	after, err := current.read()
	if err != nil {
		return memoryFigures{}, err
	}
	of := func(name string) uint64 { return field(buf[:n], prefix+name) }
	return memoryFigures{min(used, after), of("inactive_file"), of("active_file")}, nil
}

// Tasks is how many tasks are in a group and below it, fs.ErrNotExist when it is not there.
func Tasks(h *Hierarchy, path string) (uint64, error) {
	dir, err := controllerDir(h, "pids", path)
	if err != nil {
		return 0, err
	}
	return readNumber(dir + "/pids.current")
}

func controllerDir(h *Hierarchy, controller, path string) (string, error) {
	dir := h.Dir(controller, clean(path))
	if dir == "" {
		return "", fmt.Errorf("measure group %s: no hierarchy has controller %s: %w", path, controller, errors.ErrUnsupported)
	}
	return dir, nil
}

func readNumber(path string) (uint64, error) {
	f, err := openNumber(path)
	if err != nil {
		return 0, err
	}
	defer f.close()
	return f.read()
}

// numberFile is an open file of one number, which is another one at each look.
type numberFile struct {
	fd   int
	path string
}

func openNumber(path string) (numberFile, error) {
	fd, err := kernfs.Retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return numberFile{}, fmt.Errorf("open %s: %w", path, err)
	}
	return numberFile{fd, path}, nil
}

func (f numberFile) close() { _ = unix.Close(f.fd) }

func (f numberFile) read() (uint64, error) {
	var buf [64]byte
	n, err := kernfs.Pread(f.fd, buf[:])
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.path, err)
	}
	v, err := ParseNumber(buf[:n])
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.path, err)
	}
	return v, nil
}
