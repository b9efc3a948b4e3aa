package main

import (
	"strings"
	"sync"
	_ "unsafe" // for go:linkname

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
)

// What the library of cgroups has read of the mounts, once a process. It reads those of all pods, too, as soon as it is
// asked for a controller that the machine does not have, and each pod has three: with a thousand pods that is most of a
// start. It has no other way to be told.
//
//go:linkname libraryOnce github.com/opencontainers/cgroups.readMountinfoOnce
var libraryOnce sync.Once

//go:linkname libraryMounts github.com/opencontainers/cgroups.cgroupMountinfo
var libraryMounts []*mountinfo.Info

// hierarchyMounts are the mounts of cgroup v1 up to the one with which each hierarchy is there. The kernel lists mounts
// in the order in which they were made, so these come first, and those of pods behind them are not looked at.
func hierarchyMounts() ([]*mountinfo.Info, error) {
	missing, err := cgroups.ParseCgroupFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	delete(missing, "") // cgroup v2 beside them
	return mountinfo.GetMounts(untilFound(missing))
}

// untilFound takes the mounts of cgroup v1, and ends the reading when each of the hierarchies has been met. A mount
// that is skipped cannot end it.
func untilFound(missing map[string]string) mountinfo.FilterFunc {
	return func(m *mountinfo.Info) (skip, stop bool) {
		if m.FSType != "cgroup" {
			return true, false
		}
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			delete(missing, option)
		}
		return false, len(missing) == 0
	}
}

// hierarchies are the mounts of cgroup v1, one of each hierarchy.
func hierarchies() ([]cgroups.Mount, error) {
	if err := readHierarchies(); err != nil {
		return nil, err
	}
	return cgroups.GetCgroupMounts(false)
}

// readHierarchies has the library know them.
func readHierarchies() (err error) {
	if cgroups.IsCgroup2UnifiedMode() {
		return nil
	}
	libraryOnce.Do(func() { libraryMounts, err = hierarchyMounts() })
	return err // once: a launcher that has met it ends
}
