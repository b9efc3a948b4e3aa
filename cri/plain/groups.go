package plain

import (
	"fmt"
	"path"
	"slices"
	"strings"

	lib "github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // writes device rules
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// joined are the hierarchies whose groups libcontainer has a container in.
var joined = []string{
	"cpuset", "devices", "memory", "cpu", "cpuacct", "pids", "blkio", "hugetlb", "net_cls", "net_prio", "perf_event",
	"freezer", "rdma", "name=systemd", "misc",
}

// groups takes limits that a pod can name. Those of plugins, and of the machine's own, are not ordinary.
func groups(s *Start, spec *specs.Spec, m Machine) error {
	l := spec.Linux
	group, scope, err := unitGroup(spec, m)
	if err != nil {
		return err
	}
	if r := l.Resources; r != nil {
		rest := *r
		rest.Devices, rest.Memory, rest.CPU, rest.Pids, rest.HugepageLimits = nil, nil, nil, nil, nil
		if m.unified() {
			rest.Unified = nil
		}
		if name := something(rest); name != "" {
			return refused("resources have %s", name)
		}
		if err := limits(r, m); err != nil {
			return err
		}
	}
	s.group, s.scope, s.machine, s.resources = group, scope, m, l.Resources
	if m.unified() {
		// What the library takes for cgroup v2.
		if len(m.Trees) != 1 || m.Trees[0].Mount != fs2.UnifiedMountpoint || !m.Trees[0].Whole {
			return refused("hierarchies %v", m.Trees)
		}
		s.Procs = []string{fs2.UnifiedMountpoint + group + "/cgroup.procs"}
		return nil
	}
	for _, t := range m.Trees {
		dir := t.Mount + group
		if !t.Whole {
			return refused("a part of a hierarchy at %s", t.Mount)
		}
		if !t.Unified && !slices.ContainsFunc(t.Controllers, func(c string) bool { return slices.Contains(joined, c) }) {
			return refused("hierarchy %s", t.Mount)
		}
		s.Procs = append(s.Procs, dir+"/cgroup.procs")
		if !t.Unified {
			s.Trees = append(s.Trees, Tree{path.Base(t.Mount), dir})
		}
	}
	return nil
}

func limits(r *specs.LinuxResources, m Machine) error {
	if m := r.Memory; m != nil {
		rest := *m
		rest.Limit, rest.Swap, rest.Reservation = nil, nil, nil
		if name := something(rest); name != "" {
			return refused("memory has %s", name)
		}
	}
	if err := files(r.Unified); err != nil {
		return err
	}
	if c := r.CPU; c != nil {
		rest := *c
		if m.unified() {
			rest.Idle = nil
		}
		rest.Shares, rest.Quota, rest.Period, rest.Burst, rest.Cpus, rest.Mems = nil, nil, nil, nil, "", ""
		if name := something(rest); name != "" {
			return refused("cpu has %s", name)
		}
	}
	if r.Pids != nil {
		rest := *r.Pids
		rest.Limit = nil
		if name := something(rest); name != "" {
			return refused("pids has %s", name)
		}
	}
	for _, d := range r.Devices {
		if d.Allow || d.Type != "" && d.Type != "a" || d.Major != nil || d.Minor != nil || d.Access != "rwm" {
			return refused("rules of devices")
		}
	}
	return nil
}

// settable are the controllers of v2 whose files a pod may name.
var settable = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "misc", "pids", "rdma"}

// files takes the files of v2 that hold a setting. Others do something to the processes that are in the group when they
// are written to, and that is before there are any.
func files(unified map[string]string) error {
	for name, value := range unified {
		controller, setting, _ := strings.Cut(name, ".")
		if !slices.Contains(settable, controller) || setting == "" || setting == "reclaim" || strings.Contains(name, "/") {
			return refused("file %q of its group", name)
		}
		// Nobody could be born there.
		if name == "pids.max" && strings.TrimSpace(value) == "0" {
			return refused("a group for no process")
		}
	}
	return nil
}

// defaults are the devices that all containers may use: to make any, and Linux's numbers for those in each /dev, for
// terminals, and for tunnels of the network.
func defaults() []*devices.Rule {
	allow := func(kind devices.Type, major, minor int64, may devices.Permissions) *devices.Rule {
		return &devices.Rule{Type: kind, Major: major, Minor: minor, Permissions: may, Allow: true}
	}
	const any, c = devices.Wildcard, devices.CharDevice
	return []*devices.Rule{
		allow(c, any, any, "m"), allow(devices.BlockDevice, any, any, "m"),
		allow(c, 1, 3, "rwm"), allow(c, 1, 8, "rwm"), allow(c, 1, 7, "rwm"), allow(c, 5, 0, "rwm"), allow(c, 1, 5, "rwm"),
		allow(c, 1, 9, "rwm"), allow(c, 136, any, "rwm"), allow(c, 5, 2, "rwm"), allow(c, 10, 200, "rwm"),
	}
}

// MakeGroups makes the container's groups with their limits, as libcontainer does. What was made is removed with the
// container, whose record names the group. To make them again is no error on v1; on v2 devices are guarded by then, and
// the container is libcontainer's.
func (s *Start) MakeGroups() error {
	if s.scope != nil {
		return s.makeScope()
	}
	if s.machine.unified() {
		return s.makeGroup(resources(s.resources))
	}
	return s.makeTrees(resources(s.resources))
}

// makeGroup makes the group of v2. The library would also see to the devices, and raise this process's limit of locked
// memory for that, which every container would have of it.
func (s *Start) makeGroup(r *lib.Resources) error {
	r.SkipDevices = true
	dir := fs2.UnifiedMountpoint + s.group
	m, err := fs2.NewManager(&lib.Cgroup{Path: s.group, Resources: r}, dir)
	if err == nil {
		err = set(m, r)
	}
	if err == nil {
		err = s.machine.guard.attach(dir, s.scope != nil)
	}
	if err != nil {
		return fmt.Errorf("make group: %w", err)
	}
	return nil
}

// nobody is whom the library is told to put into a group.
const nobody = -1

// set makes the group of v2 with nobody in it, and sets its limits.
func set(m lib.Manager, r *lib.Resources) error {
	if err := m.Apply(nobody); err != nil {
		return err
	}
	return m.Set(r)
}

// resources says the limits as the library has them.
func resources(r *specs.LinuxResources) *lib.Resources {
	out := &lib.Resources{}
	if r == nil {
		r = &specs.LinuxResources{}
	}
	for range r.Devices {
		out.Devices = append(out.Devices, &devices.Rule{
			Type: devices.WildcardDevice, Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "rwm",
		})
	}
	out.Devices = append(out.Devices, defaults()...)
	if m := r.Memory; m != nil {
		out.Memory, out.MemorySwap, out.MemoryReservation = value(m.Limit), value(m.Swap), value(m.Reservation)
	}
	if c := r.CPU; c != nil {
		out.CpuShares, out.CpuQuota, out.CpuPeriod, out.CpuBurst = value(c.Shares), value(c.Quota), value(c.Period), c.Burst
		out.CpuWeight = lib.ConvertCPUSharesToCgroupV2Value(out.CpuShares)
		out.CpusetCpus, out.CpusetMems, out.CPUIdle = c.Cpus, c.Mems, c.Idle
	}
	if r.Pids != nil {
		out.PidsLimit = r.Pids.Limit
	}
	for _, l := range r.HugepageLimits {
		out.HugetlbLimit = append(out.HugetlbLimit, &lib.HugepageLimit{Pagesize: l.Pagesize, Limit: l.Limit})
	}
	out.Unified = r.Unified
	return out
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
