package cgroups

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/berth-node/berth/cgroups/charge"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// WorkingSet is what a group has of the memory, as [Memory.WorkingSet], by reading the files that tell, as they are
// now: for who asks all groups at once and has no time. A group that is not there is fs.ErrNotExist.
func WorkingSet(h *Hierarchy, path string) (uint64, error) {
	m, err := memoryNow(h, path)
	return uint64(m.WorkingSet()), err
}

// Unreclaimable is what a group has of the memory that the kernel cannot take back by dropping file cache: unlike
// the working set, cache that is in use does not count.
func Unreclaimable(h *Hierarchy, path string) (uint64, error) {
	m, err := memoryNow(h, path)
	return uint64(m.Unreclaimable()), err
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

func memoryNow(h *Hierarchy, path string) (charge.Memory, error) {
	dir, err := controllerDir(h, "memory", path)
	if err != nil {
		return charge.Memory{}, err
	}
	return charge.Read(dir)
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
	var buf [64]byte
	n, err := kernfs.ReadInto(path, buf[:])
	if err != nil {
		return 0, err
	}
	v, err := ParseNumber(buf[:n])
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return v, nil
}
