package cgroups

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// OpenSampler opens the group's files, of all of them without names. Those the kernel lacks are left out; a group that
// does not exist is ENOENT. A file that is opened and never looked at costs as much as to read it: figures of those
// that are not named are zero, and limits none.
func (h *Hierarchy) OpenSampler(path string, names ...string) (*Sampler, error) {
	wanted := func(file string) bool { return len(names) == 0 || slices.Contains(names, file) }
	path = clean(path)
	if !h.Exists(path) {
		return nil, fmt.Errorf("measure group %s: %w", path, unix.ENOENT)
	}
	s := &Sampler{path: path}
	s.last = unlimited()
	sources := v1Sources()
	if h.mode == Unified {
		sources = v2Sources()
	}
	if h.unified != "" {
		sources = slices.Concat(sources, s.pressureSources()) // those of before are everybody's
	}
	controller, dir := "", h.Dir("", path)
	for _, src := range sources {
		if src.controller != controller { // those of one follow each other
			controller, dir = src.controller, h.Dir(src.controller, path)
		}
		if dir == "" || !wanted(src.name) {
			continue
		}
		fd, err := kernfs.Retry(func() (int, error) { return unix.Open(dir+"/"+src.name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("open %s/%s: %w", dir, src.name, err)
		}
		s.files = append(s.files, statFile{fd, src, bound(src.name)})
	}
	if h.mode != Unified && wanted("memory.oom_control") {
		s.oom = openOOM(h.MemoryDir(path))
	}
	// A group that went meanwhile looks like a kernel that has none of the files.
	if !h.Exists(path) {
		s.Close()
		return nil, fmt.Errorf("measure group %s: %w", path, unix.ENOENT)
	}
	return s, nil
}
