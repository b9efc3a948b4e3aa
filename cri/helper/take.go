package main

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// remounted is the type of a mount that only changes the flags of what is at its place.
const remounted = "remount"

// A taker goes through the mounts of a config in their order. What is staged comes before all that is left, so a mount
// is taken only where that makes no difference: where none that is left is on its way, or on the way to it.
type taker struct {
	stage    stage
	root     string // of the container
	fd       int    // of root
	linux    *specs.Linux
	cgroupns bool
	rest     []specs.Mount
	left     []string // where those of rest are
	taken    []string // where volumes and files of the stage are
}

func (t *taker) leave(m specs.Mount, d string) {
	t.rest = append(t.rest, m)
	t.left = append(t.left, d)
}

// take says whether m, at the clean path d, becomes part of the stage.
func (t *taker) take(m specs.Mount, d string) bool {
	switch {
	case len(m.UIDMappings)+len(m.GIDMappings) > 0:
		return false
	case d == cgroupRoot && m.Type == "cgroup":
		return t.takeCgroup(m)
	case slices.ContainsFunc(t.left, func(l string) bool { return related(l, d) }):
		return false
	case d == devRoot:
		return t.takeDev(m)
	case filepath.Dir(d) == devRoot:
		return t.takeOnDev(m, d)
	case d == procRoot && m.Type == "proc":
		return t.takeRoot(m, d)
	case d == sysRoot && m.Type == "sysfs":
		return t.takeSys(m)
	case isSystem(d):
		return false
	}
	return t.takePlain(m, d)
}

// takePlain takes volumes and files of the host. One that is left may be at the end of a symbolic link, and then its
// place is not known; so none is taken behind it. Nor is one that is in a volume, where others may be at work.
func (t *taker) takePlain(m specs.Mount, d string) bool {
	if !isPlain(m) || slices.ContainsFunc(t.left, func(l string) bool { return !isSystem(l) }) ||
		slices.ContainsFunc(t.taken, func(other string) bool { return related(other, d) }) || !t.takeRoot(m, d) {
		return false
	}
	t.taken = append(t.taken, d)
	return true
}

// takeRoot has m mounted at its place in the root, if that is one.
func (t *taker) takeRoot(m specs.Mount, d string) bool {
	if !place(t.fd, d, !isBind(m) || isDir(m.Source)) {
		return false
	}
	m.Destination = filepath.Join(t.root, d)
	t.stage.Root = append(t.stage.Root, m)
	return true
}

// takeSys has /sys be read-only where the path is to be. As a read-only path it would be bound on itself with all that
// is mounted below: a second /sys, and a second mount of each hierarchy.
func (t *taker) takeSys(m specs.Mount) bool {
	if !t.takeRoot(m, sysRoot) {
		return false
	}
	if i := slices.Index(t.linux.ReadonlyPaths, sysRoot); i >= 0 {
		t.linux.ReadonlyPaths = slices.Delete(slices.Clone(t.linux.ReadonlyPaths), i, i+1)
		t.stage.Root = append(t.stage.Root, specs.Mount{
			Type: remounted, Destination: filepath.Join(t.root, sysRoot), Options: append(slices.Clone(m.Options), "ro"),
		})
	}
	return true
}

// takeCgroup has the container's own group of each hierarchy shown. A sysfs of the stage has the place.
func (t *taker) takeCgroup(m specs.Mount) bool {
	if t.stage.Cgroup != nil || t.cgroupns || cgroups.IsCgroup2UnifiedMode() {
		return false // that of v2 is one mount, which has to be made in the container's cgroup namespace
	}
	trees, err := hierarchies()
	if err != nil {
		return false // libcontainer will tell
	}
	at := filepath.Join(t.root, cgroupRoot)
	if !slices.ContainsFunc(t.stage.Root, func(m specs.Mount) bool { return m.Type == "sysfs" }) {
		at = t.stage.path(cgroupRoot)
		t.leave(t.stage.bind(m), cgroupRoot)
	}
	m.Destination = at
	t.stage.Cgroup, t.stage.Trees = &m, trees
	return true
}

// takeDev takes a /dev that has no other devices than all have.
func (t *taker) takeDev(m specs.Mount) bool {
	if m.Type != "tmpfs" || len(t.linux.Devices) > 0 || t.stage.Dev != nil {
		return false
	}
	t.stage.Dev = &m
	t.rest = append(t.rest, t.stage.bind(m)) // and it is not in the way of what comes onto it
	return true
}

// takeOnDev takes what is mounted on the stage's /dev, in which there is nothing yet of anybody's making.
func (t *taker) takeOnDev(m specs.Mount, d string) bool {
	name := filepath.Base(d)
	if t.stage.Dev == nil || hasDev(name) ||
		slices.ContainsFunc(t.stage.OnDev, func(o specs.Mount) bool { return filepath.Base(o.Destination) == name }) {
		return false
	}
	if !ownOnDev(m) && !isPlain(m) {
		return false
	}
	t.stage.OnDev = append(t.stage.OnDev, m)
	return true
}

// ownOnDev says whether m is one of those that every container has on its /dev.
func ownOnDev(m specs.Mount) bool {
	return m.Destination == "/dev/pts" && m.Type == "devpts" || m.Destination == "/dev/mqueue" && m.Type == "mqueue" ||
		m.Destination == "/dev/shm" && isBind(m) && slices.Equal(m.Options, shmOptions)
}

// shmOptions are those of the pod's shared memory. The mount that is bound has the
// flags among them already.
var shmOptions = []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "rw"}

// hasDev says whether a stage's /dev has that name without any mount.
func hasDev(name string) bool {
	_, link := devLinks[name]
	return link || name == "core" || slices.ContainsFunc(devNodes, func(n devNode) bool { return n.name == name })
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}
