package kube

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// Target is a group and what its settings shall be.
type Target struct {
	Path      string
	Resources *specs.LinuxResources
}

// Resize changes a running pod and its containers together. write changes one of the containers, as the runtime has its
// own record of them; nil writes their groups.
//
// The order matters: in v1 no group may have a quota above its parent's at any moment, so what the pod gets more of is
// written before its containers and what it gets less of after them, for CPU and memory apart. Memory is refused before
// anything is written when somebody uses more than the new limit. All of it can be done again.
func Resize(h *cgroups.Hierarchy, pod Target, containers []Target, write func(Target) error) error {
	for _, t := range append([]Target{pod}, containers...) {
		if err := cgroups.Fits(h, t.Path, t.Resources); err != nil {
			return fmt.Errorf("resize %s: %w", t.Path, err)
		}
	}
	if write == nil {
		write = func(t Target) error { return h.Update(t.Path, Explicit(t.Resources)) }
	}
	var before, after []*specs.LinuxResources
	for _, section := range []struct {
		r    *specs.LinuxResources
		grow bool
	}{
		{pickCPU(pod.Resources), cores(pod.Resources) >= coresOf(h, pod.Path)},
		{pickMemory(pod.Resources), memoryLimit(pod.Resources) >= memoryLimitOf(h, pod.Path)},
		{pickRest(pod.Resources), true},
	} {
		switch {
		case section.r == nil:
		case section.grow:
			before = append(before, section.r)
		default:
			after = append(after, section.r)
		}
	}
	own := func(list []*specs.LinuxResources) error {
		for _, r := range list {
			if err := h.Update(pod.Path, r); err != nil {
				return fmt.Errorf("resize %s: %w", pod.Path, err)
			}
		}
		return nil
	}
	if err := own(before); err != nil {
		return err
	}
	for _, t := range containers {
		if err := write(t); err != nil {
			return fmt.Errorf("resize %s: %w", t.Path, err)
		}
	}
	return own(after)
}

// Explicit says in words where there is no limit of CPU or memory, so that one that was there goes.
func Explicit(r *specs.LinuxResources) *specs.LinuxResources {
	out := *r
	if c := pickCPU(r); c != nil {
		out.CPU = c.CPU
	}
	out.Memory = pickMemory(r).Memory
	return &out
}

// pickCPU returns the CPU settings, with the quota lifted in words where there is none, as the old one must go.
func pickCPU(r *specs.LinuxResources) *specs.LinuxResources {
	if r == nil || r.CPU == nil {
		return nil
	}
	c := *r.CPU
	if c.Quota == nil {
		none := int64(-1)
		c.Quota = &none
	}
	return &specs.LinuxResources{CPU: &c}
}

func pickMemory(r *specs.LinuxResources) *specs.LinuxResources {
	if r == nil {
		return nil
	}
	if r.Memory == nil || r.Memory.Limit == nil {
		none := int64(-1)
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &none}}
	}
	return &specs.LinuxResources{Memory: r.Memory}
}

func pickRest(r *specs.LinuxResources) *specs.LinuxResources {
	if r == nil || r.Pids == nil && len(r.HugepageLimits) == 0 && len(r.Unified) == 0 {
		return nil
	}
	return &specs.LinuxResources{Pids: r.Pids, HugepageLimits: r.HugepageLimits, Unified: r.Unified}
}

func cores(r *specs.LinuxResources) float64 {
	if r == nil || r.CPU == nil || r.CPU.Quota == nil || *r.CPU.Quota <= 0 {
		return math.Inf(1)
	}
	period := float64(cgroups.DefaultPeriodUs)
	if r.CPU.Period != nil && *r.CPU.Period > 0 {
		period = float64(*r.CPU.Period)
	}
	return float64(*r.CPU.Quota) / period
}

// coresOf is the group's CPU limit now, infinite without one.
func coresOf(h *cgroups.Hierarchy, path string) float64 {
	dir := h.Dir("cpu", path)
	var text string
	if h.Mode() == cgroups.Unified {
		text, _ = kernfs.ReadString(dir + "/cpu.max")
	} else {
		quota, _ := kernfs.ReadString(dir + "/cpu.cfs_quota_us")
		period, _ := kernfs.ReadString(dir + "/cpu.cfs_period_us")
		text = quota + " " + period
	}
	words := strings.Fields(text)
	if len(words) != 2 {
		return math.Inf(1)
	}
	quota, err1 := strconv.ParseFloat(words[0], 64)
	period, err2 := strconv.ParseFloat(words[1], 64)
	if err1 != nil || err2 != nil || quota <= 0 || period <= 0 {
		return math.Inf(1)
	}
	return quota / period
}

func memoryLimit(r *specs.LinuxResources) uint64 {
	if r == nil || r.Memory == nil || r.Memory.Limit == nil || *r.Memory.Limit <= 0 {
		return cgroups.NoLimit
	}
	return uint64(*r.Memory.Limit)
}

func memoryLimitOf(h *cgroups.Hierarchy, path string) uint64 {
	file := "/memory.limit_in_bytes"
	if h.Mode() == cgroups.Unified {
		file = "/memory.max"
	}
	text, err := kernfs.ReadString(h.MemoryDir(path) + file)
	if err != nil {
		return cgroups.NoLimit
	}
	n, err := cgroups.ParseNumber([]byte(text))
	if err != nil {
		return cgroups.NoLimit
	}
	return n
}
