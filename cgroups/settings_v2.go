package cgroups

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// v2Wanted are the controllers a pod's group may need. Others (rdma, misc, dmem) stay off: each enabled one costs
// memory in every group.
func v2Wanted(have []string) []string {
	var out []string
	for _, c := range []string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"} {
		if slices.Contains(have, c) {
			out = append(out, c)
		}
	}
	return out
}

// enable turns controllers on for the children of dir. Reading first is cheaper than writing: a write takes the
// kernel's global cgroup lock even when nothing changes.
func enable(dir string, controllers []string) error {
	data, err := os.ReadFile(dir + "/cgroup.subtree_control")
	if err != nil {
		return fmt.Errorf("read subtree_control of %s: %w", dir, err)
	}
	on := strings.Fields(string(data))
	var add []string
	for _, c := range controllers {
		if !slices.Contains(on, c) {
			add = append(add, "+"+c)
		}
	}
	if len(add) == 0 {
		return nil
	}
	if err := kernfs.Write(dir, "cgroup.subtree_control", strings.Join(add, " ")); err != nil {
		return fmt.Errorf("enable %s below %s: %w", strings.Join(add, " "), dir, err)
	}
	return nil
}

// applyV2 writes r to the v2 hierarchy through containerd's cgroup2, which converts OCI's v1 terms.
func (g group) applyV2(r *specs.LinuxResources) error {
	path := g.path
	res, raw := v2Resources(r, g.h.v2)
	m, err := cgroup2.Load(path, cgroup2.WithMountpoint(g.h.unified))
	if err != nil {
		return fmt.Errorf("load group %s: %w", path, err)
	}
	if err := m.Update(res); err != nil {
		return fmt.Errorf("write settings of %s: %w", path, err)
	}
	dir := g.h.unified + path
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		if strings.ContainsRune(name, '/') {
			continue
		}
		if err := kernfs.Write(dir, name, raw[name]); err != nil {
			return err
		}
	}
	return nil
}

// v2Resources converts, and returns beside it the files cgroup2 has no words for: "max" where OCI says -1, and the
// spec's unified map. Settings of controllers that are not there are dropped, as the v1 side does.
func v2Resources(r *specs.LinuxResources, have []string) (*cgroup2.Resources, map[string]string) {
	res := cgroup2.ToResources(r)
	raw := map[string]string{}
	if c := r.CPU; c != nil {
		res.CPU.Max = ""
		if c.Shares != nil {
			w := Weight(*c.Shares)
			res.CPU.Weight = &w
		}
		if c.Quota != nil || c.Period != nil {
			quota := "max"
			if c.Quota != nil && *c.Quota > 0 {
				quota = strconv.FormatInt(*c.Quota, 10)
			}
			period := uint64(DefaultPeriodUs)
			if c.Period != nil && *c.Period > 0 {
				period = *c.Period
			}
			res.CPU.Max = cgroup2.CPUMax(quota + " " + strconv.FormatUint(period, 10))
		}
		if c.Burst != nil {
			raw["cpu.max.burst"] = strconv.FormatUint(*c.Burst, 10)
		}
		if c.Idle != nil {
			raw["cpu.idle"] = strconv.FormatInt(*c.Idle, 10)
		}
	}
	if m := r.Memory; m != nil {
		if m.Limit != nil && *m.Limit < 0 {
			res.Memory.Max = nil
			raw["memory.max"] = "max"
		}
		if m.Swap != nil && (*m.Swap < 0 || (m.Limit != nil && *m.Limit < 0)) {
			res.Memory.Swap = nil
			if *m.Swap < 0 {
				raw["memory.swap.max"] = "max"
			}
		}
	}
	if p := r.Pids; p != nil && p.Limit != nil && *p.Limit <= 0 {
		raw["pids.max"] = "max"
	}
	if b := r.BlockIO; b != nil {
		// The BFQ weight is only there with that scheduler; io.weight takes the same scale on kernels with iocost.
		res.IO.BFQ.Weight = 0
		if b.Weight != nil {
			raw["io.weight"] = strconv.Itoa(1 + (int(*b.Weight)-10)*9999/990)
		}
	}
	maps.Copy(raw, r.Unified)
	drop(res, raw, have)
	return res, raw
}

func drop(res *cgroup2.Resources, raw map[string]string, have []string) {
	has := func(c string) bool { return slices.Contains(have, c) }
	if !has("cpu") {
		res.CPU = nil
	} else if res.CPU != nil && !has("cpuset") {
		res.CPU.Cpus, res.CPU.Mems = "", ""
	}
	if !has("memory") {
		res.Memory = nil
	}
	if !has("pids") {
		res.Pids = nil
	}
	if !has("io") {
		res.IO = nil
	}
	if !has("hugetlb") {
		res.HugeTlb = nil
	}
	if !has("rdma") {
		res.RDMA = nil
	}
	for name := range raw {
		controller, _, _ := strings.Cut(name, ".")
		if controller != "cgroup" && !has(controller) {
			delete(raw, name)
		}
	}
}

// DefaultPeriodUs is the kernel's period of CPU quotas in microseconds.
const DefaultPeriodUs = 100_000

const defaultShares = 1024

// Weight converts v1's shares to v2's weight as the kernel does between its two interfaces (sched_weight_to_cgroup):
// both are proportional, and the default of one, 1024, is the default of the other, 100.
func Weight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	return min(max((shares*100+defaultShares/2)/defaultShares, 1), 10_000)
}
