package nri

import (
	"errors"
	"fmt"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/oci"
)

// FromCRI is how plugins know resources. Zero is nothing said.
func FromCRI(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}, Memory: &api.LinuxMemory{}, Unified: r.GetUnified()}
	if v := r.GetCpuShares(); v != 0 {
		out.Cpu.Shares = api.UInt64(v)
	}
	if v := r.GetCpuQuota(); v != 0 {
		out.Cpu.Quota = api.Int64(v)
	}
	if v := r.GetCpuPeriod(); v != 0 {
		out.Cpu.Period = api.UInt64(v)
	}
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		out.Memory.Limit = api.Int64(v)
	}
	if v := r.GetMemorySwapLimitInBytes(); v != 0 {
		out.Memory.Swap = api.Int64(v)
	}
	for _, h := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return out
}

// ToCRI is an update as the CRI has it, and what of it the CRI has no field for.
func ToCRI(r *api.LinuxResources) (*runtimeapi.LinuxContainerResources, Beyond, error) {
	var b Beyond
	if err := checkResources(r); err != nil {
		return nil, b, err
	}
	m, c := r.GetMemory(), r.GetCpu()
	if m.GetSwappiness() != nil || m.GetDisableOomKiller() != nil || m.GetUseHierarchy() != nil || c.GetRealtimeRuntime() != nil || c.GetRealtimePeriod() != nil {
		return nil, b, errors.New("swappiness, the OOM killer, memory hierarchy and real-time scheduling are not changed once a container is there")
	}
	if r.GetBlockioClass() != nil || r.GetRdtClass() != nil {
		return nil, b, errors.New("classes of block I/O and RDT are not changed once a container is there")
	}
	if len(r.GetDevices()) > 0 {
		return nil, b, errors.New("devices are not changed once a container is there")
	}
	b.reservation = m.GetReservation().Get()
	if p := r.GetPids(); p != nil {
		limit := p.GetLimit()
		b.pids = &limit
	}
	return Plain(r), b, nil
}

// Plain is what of resources the CRI has fields for.
func Plain(r *api.LinuxResources) *runtimeapi.LinuxContainerResources {
	m, c := r.GetMemory(), r.GetCpu()
	out := &runtimeapi.LinuxContainerResources{
		CpuPeriod: int64(c.GetPeriod().GetValue()), CpuQuota: c.GetQuota().GetValue(), CpuShares: int64(c.GetShares().GetValue()),
		CpusetCpus: c.GetCpus(), CpusetMems: c.GetMems(), Unified: r.GetUnified(),
		MemoryLimitInBytes: m.GetLimit().GetValue(), MemorySwapLimitInBytes: m.GetSwap().GetValue(),
	}
	for _, h := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return out
}

// Beyond is what plugins can ask for and the CRI cannot say.
type Beyond struct{ reservation, pids *int64 }

// Add puts it into resources of the OCI.
func (b Beyond) Add(r *specs.LinuxResources) {
	if b.reservation != nil {
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		r.Memory.Reservation = b.reservation
	}
	if b.pids != nil {
		r.Pids = &specs.LinuxPids{Limit: b.pids}
	}
}

// Container fills in what a specification says of a container, and the shares that were asked for.
func Container(c *api.Container, s *specs.Spec, asked *runtimeapi.LinuxContainerResources) error {
	if s == nil || s.Linux == nil || s.Process == nil {
		return fmt.Errorf("describe container %s to plugins: its specification has no process", c.GetId())
	}
	c.Args, c.Env, c.Annotations = s.Process.Args, s.Process.Env, s.Annotations
	c.Mounts, c.Hooks = api.FromOCIMounts(s.Mounts), api.FromOCIHooks(s.Hooks)
	c.User = &api.User{Uid: s.Process.User.UID, Gid: s.Process.User.GID, AdditionalGids: s.Process.User.AdditionalGids}
	for _, r := range s.Process.Rlimits {
		c.Rlimits = append(c.Rlimits, &api.POSIXRlimit{Type: r.Type, Hard: r.Hard, Soft: r.Soft})
	}
	c.Linux = &api.LinuxContainer{
		Namespaces: api.FromOCILinuxNamespaces(s.Linux.Namespaces), Devices: api.FromOCILinuxDevices(s.Linux.Devices),
		Resources: api.FromOCILinuxResources(s.Linux.Resources, nil), CgroupsPath: s.Linux.CgroupsPath,
		IoPriority: api.FromOCILinuxIOPriority(s.Process.IOPriority),
		Scheduler:  api.FromOCILinuxScheduler(s.Process.Scheduler), Sysctl: s.Linux.Sysctl,
	}
	if s.Linux.Seccomp != nil {
		c.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(s.Linux.Seccomp)
	}
	if v := s.Process.OOMScoreAdj; v != nil {
		c.Linux.OomScoreAdj = api.Int(v)
	}
	shares(c.Linux.GetResources(), asked)
	return nil
}

// shares tells those that were asked for where the specification has them as a weight, on cgroup v2: plugins that place
// containers compute what CPU each has requested from its shares.
func shares(r *api.LinuxResources, asked *runtimeapi.LinuxContainerResources) {
	v := uint64(asked.GetCpuShares())
	if r == nil || v == 0 || r.GetCpu().GetShares() != nil {
		return
	}
	if r.Cpu == nil {
		r.Cpu = &api.LinuxCPU{}
	}
	r.Cpu.Shares = api.UInt64(v)
	if _, given := asked.GetUnified()[oci.WeightFile]; !given {
		delete(r.Unified, oci.WeightFile)
	}
}
