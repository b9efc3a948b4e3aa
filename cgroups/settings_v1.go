package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// setting is what cgroup1's subsystems have in common: Create writes what the resources ask for.
type setting interface {
	Create(path string, r *specs.LinuxResources) error
}

// updater is what the subsystems have in whose files the order of the writes depends on the values that are there.
type updater interface {
	Update(path string, r *specs.LinuxResources) error
}

// v1Settings writes limits into v1 hierarchies through containerd's cgroup1.
type v1Settings struct {
	cpu, memory, pids, blkio, devices, hugetlb setting
	byName                                     map[string]string
}

func newV1Settings(byName map[string]string) *v1Settings {
	s := &v1Settings{byName: byName}
	for name := range byName {
		root := filepath.Dir(byName[name])
		switch name {
		case "cpu":
			s.cpu = cgroup1.NewCpu(root)
		case "memory":
			s.memory = cgroup1.NewMemory(root, cgroup1.OptionalSwap())
		case "pids":
			s.pids = cgroup1.NewPids(root)
		case "blkio":
			s.blkio = cgroup1.NewBlkio(root)
		case "devices":
			s.devices = cgroup1.NewDevices(root)
		case "hugetlb":
			if c, err := cgroup1.NewHugetlb(root); err == nil {
				s.hugetlb = c
			}
		}
	}
	return s
}

// at is the group's path as cgroup1 wants it. cgroup1 looks for a controller in <root>/<controller>; where the kernel
// mounts it under another name (cpu,cpuacct without the usual symlink), the way there is part of the path.
func (s *v1Settings) at(controller, path string) string {
	base := filepath.Base(s.byName[controller])
	if base == controller {
		return path
	}
	return "../" + base + path
}

// apply writes the settings of r. create skips the controllers that r says nothing of, update may have to order its
// writes.
func (s *v1Settings) apply(path string, r *specs.LinuxResources, update bool) error {
	type step struct {
		name string
		s    setting
		want bool
	}
	for _, st := range []step{
		{"cpu", s.cpu, r.CPU != nil},
		{"memory", s.memory, r.Memory != nil},
		{"pids", s.pids, r.Pids != nil},
		{"hugetlb", s.hugetlb, len(r.HugepageLimits) > 0},
		{"devices", s.devices, len(r.Devices) > 0},
	} {
		if !st.want || st.s == nil {
			continue
		}
		fn := st.s.Create
		if u, ok := st.s.(updater); ok && update {
			fn = u.Update
		}
		if update && st.name == "memory" {
			if err := s.raiseSwap(path, r.Memory); err != nil {
				return err
			}
		}
		if err := fn(s.at(st.name, path), r); err != nil {
			return fmt.Errorf("write %s settings of %s: %w", st.name, path, explain(st.name, err))
		}
	}
	return errors.Join(s.burst(path, r), s.unlimitedPids(path, r), s.cpuset(path, r), s.block(path, r), s.unified(path, r))
}

// raiseSwap: the limit of memory and swap together may at no time be below that of memory, so it has to grow first.
// cgroup1 means to do so, but then writes the soft limit first.
func (s *v1Settings) raiseSwap(path string, m *specs.LinuxMemory) error {
	dir := s.byName["memory"] + path
	if m.Limit == nil || m.Swap == nil || *m.Swap == 0 || !kernfs.Exists(dir+"/memory.memsw.limit_in_bytes") {
		return nil
	}
	if *m.Swap < 0 {
		return kernfs.Write(dir, "memory.memsw.limit_in_bytes", "-1")
	}
	b, err := os.ReadFile(dir + "/memory.memsw.limit_in_bytes")
	if err != nil {
		return fmt.Errorf("read swap limit of %s: %w", path, err)
	}
	now, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || now >= *m.Swap {
		return nil // a number too large for an int64 is no limit
	}
	return kernfs.Write(dir, "memory.memsw.limit_in_bytes", strconv.FormatInt(*m.Swap, 10))
}

// burst is written here, and after the quota, which it may not exceed: cgroup1 knows nothing of it.
func (s *v1Settings) burst(path string, r *specs.LinuxResources) error {
	dir, ok := s.byName["cpu"]
	if !ok || r.CPU == nil || r.CPU.Burst == nil || !kernfs.Exists(dir+path+"/cpu.cfs_burst_us") {
		return nil
	}
	return kernfs.Write(dir+path, "cpu.cfs_burst_us", strconv.FormatUint(*r.CPU.Burst, 10))
}

// unlimitedPids: cgroup1 skips limits below 1, but a limit that is taken away has to be written.
func (s *v1Settings) unlimitedPids(path string, r *specs.LinuxResources) error {
	if s.pids == nil || r.Pids == nil || r.Pids.Limit == nil || *r.Pids.Limit > 0 {
		return nil
	}
	return kernfs.Write(s.byName["pids"]+path, "pids.max", "max")
}

// cpuset is written here: cgroup1 would walk and copy every ancestor's cpus again at each call, and Create has done
// that.
func (s *v1Settings) cpuset(path string, r *specs.LinuxResources) error {
	dir, ok := s.byName["cpuset"]
	if !ok || r.CPU == nil {
		return nil
	}
	if r.CPU.Cpus != "" {
		if err := kernfs.Write(dir+path, "cpuset.cpus", r.CPU.Cpus); err != nil {
			return err
		}
	}
	if r.CPU.Mems != "" {
		return kernfs.Write(dir+path, "cpuset.mems", r.CPU.Mems)
	}
	return nil
}

// block writes io limits. Kernels without CFQ have blkio.bfq.weight at best, so a weight nobody can honour is left out.
func (s *v1Settings) block(path string, r *specs.LinuxResources) error {
	if r.BlockIO == nil || s.blkio == nil {
		return nil
	}
	dir := s.byName["blkio"] + path
	b := *r.BlockIO
	if b.Weight != nil && !kernfs.Exists(dir+"/blkio.weight") {
		if kernfs.Exists(dir + "/blkio.bfq.weight") {
			if err := kernfs.Write(dir, "blkio.bfq.weight", fmt.Sprint(*b.Weight)); err != nil {
				return err
			}
		}
		b.Weight = nil
	}
	if b.LeafWeight != nil && !kernfs.Exists(dir+"/blkio.leaf_weight") {
		b.LeafWeight = nil
	}
	c := *r
	c.BlockIO = &b
	if err := s.blkio.Create(s.at("blkio", path), &c); err != nil {
		return fmt.Errorf("write blkio settings of %s: %w", path, err)
	}
	return nil
}

// unified writes raw files named in the OCI spec's "unified" map: "cpu.cfs_burst_us" goes to the cpu hierarchy. v2
// names that v1 has no file for are left out, as they are wishes for the other interface.
func (s *v1Settings) unified(path string, r *specs.LinuxResources) error {
	for name, value := range r.Unified {
		controller, _, _ := strings.Cut(name, ".")
		dir, ok := s.byName[controller]
		if !ok || strings.ContainsRune(name, '/') || !kernfs.Exists(dir+path+"/"+name) {
			continue
		}
		if err := kernfs.Write(dir+path, name, value); err != nil {
			return err
		}
	}
	return nil
}

// explain adds what the bare errno of a cgroup file means.
func explain(controller string, err error) error {
	switch {
	case controller == "memory" && errors.Is(err, unix.EBUSY):
		return fmt.Errorf("the limit is below what is in use now and cannot be reclaimed: %w", err)
	case controller == "cpu" && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("quota or period is out of the kernel's range (1ms to 1s) or above the parent's: %w", err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("this kernel has no such file or the group is gone: %w", err)
	}
	return err
}
