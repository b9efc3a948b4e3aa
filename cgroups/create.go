package cgroups

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Create makes the group in every hierarchy, with its parents, and writes r (nil: no settings). Doing it again only
// writes the settings again.
func (h *Hierarchy) Create(path string, r *specs.LinuxResources) error {
	g, err := groupAt(h, path)
	if err != nil {
		return err
	}
	for _, t := range h.trees {
		if err := t.mkdir(g.path, h.mode); err != nil {
			return fmt.Errorf("create group %s: %w", g.path, err)
		}
	}
	if r == nil {
		return nil
	}
	return g.apply(r, false)
}

// Update writes r to a group that exists.
func (h *Hierarchy) Update(path string, r *specs.LinuxResources) error {
	g, err := groupAt(h, path)
	if err != nil {
		return err
	}
	if r == nil {
		return nil
	}
	if !h.Exists(g.path) {
		// cgroup1's writers would make the directory.
		return fmt.Errorf("update group %s: %w", g.path, unix.ENOENT)
	}
	return g.apply(r, true)
}

func (g group) apply(r *specs.LinuxResources, update bool) error {
	h := g.h
	if h.mode == Unified {
		return g.applyV2(r)
	}
	if err := h.sub.apply(g.path, r, update); err != nil {
		return err
	}
	if h.mode == Hybrid && len(r.HugepageLimits) > 0 && h.sub.hugetlb == nil {
		return g.applyHybrid(r)
	}
	return nil
}

// applyHybrid writes the limits of controllers that a hybrid machine has only on its v2 side, hugetlb in practice. They
// are switched on along the path only now, when somebody asks for them, since on the way they forbid processes in inner
// groups.
func (g group) applyHybrid(r *specs.LinuxResources) error {
	if len(g.h.v2) == 0 {
		return nil
	}
	if err := g.h.Enable(g.path, v2Wanted(g.h.v2)...); err != nil {
		return err
	}
	return g.applyV2(&specs.LinuxResources{HugepageLimits: r.HugepageLimits})
}

// Enable switches controllers of the v2 hierarchy on for a group, all the way down to it; those that the machine lacks
// are left out.
func (h *Hierarchy) Enable(path string, controllers ...string) error {
	have := slices.DeleteFunc(controllers, func(c string) bool { return !slices.Contains(h.v2, c) })
	if len(have) == 0 {
		return nil
	}
	for _, dir := range ancestors(h.unified, path) {
		if err := enable(dir, have); err != nil {
			return err
		}
	}
	return nil
}

// ancestors are the directories above the group, the mount first.
func ancestors(root, path string) []string {
	var out []string
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		if p == "/" {
			out = append(out, root)
			break
		}
		out = append(out, root+p)
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// mkdir makes the group in one hierarchy. The directory comes first and its parents only when it failed: nearly always
// they are there, and a walk from the top would cost more than the mkdir.
func (t tree) mkdir(path string, m Mode) error {
	dir := t.dir + path
	err := unix.Mkdir(dir, 0o755)
	if errors.Is(err, unix.ENOENT) {
		parent := filepath.Dir(path)
		if parent == "/" {
			return fmt.Errorf("mkdir %s: %w", dir, err)
		}
		if err := t.mkdir(parent, m); err != nil {
			return err
		}
		err = unix.Mkdir(dir, 0o755)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("mkdir %s: %w", dir, err)
	}
	switch {
	case t.unified && m == Unified:
		return enable(filepath.Dir(dir), v2Wanted(t.controllers))
	case t.has("cpuset"):
		return prepareCpuset(dir, filepath.Dir(dir))
	}
	return nil
}

// prepareCpuset gives a v1 cpuset its CPUs and memory nodes: a new one is empty, and attaching to an empty one fails
// with ENOSPC. cgroup.clone_children makes the kernel do the copying for everything made below, so only our topmost
// group pays for it. cpuset.cpus is written last: a group that has it was prepared completely.
func prepareCpuset(dir, parent string) error {
	var buf [512]byte
	n, err := kernfs.ReadInto(dir+"/cpuset.cpus", buf[:])
	if err != nil || n > 1 {
		return err
	}
	if err := kernfs.Write(dir, "cgroup.clone_children", "1"); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.mems", "cpuset.cpus"} {
		value, err := kernfs.ReadString(parent + "/" + file)
		if err != nil {
			return err
		}
		if err := kernfs.Write(dir, file, value); err != nil {
			return err
		}
	}
	return nil
}
