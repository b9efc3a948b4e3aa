package oci

import (
	"maps"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func resources(in *Input, s *specs.Spec) error {
	r := Resources(in.Container.GetLinux().GetResources(), in.Host)
	r.Devices = s.Linux.Resources.Devices
	s.Linux.Resources = r
	return nil
}

// Resources is the CRI's resources as the runtime specification says them. Zero means unspecified and is left out.
func Resources(r *runtimeapi.LinuxContainerResources, h Host) *specs.LinuxResources {
	out := &specs.LinuxResources{}
	if r == nil {
		return out
	}
	cpu := &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}
	if v := uint64(r.GetCpuPeriod()); v != 0 {
		cpu.Period = &v
	}
	if v := r.GetCpuQuota(); v != 0 {
		cpu.Quota = &v
	}
	if v := uint64(r.GetCpuShares()); v != 0 {
		cpu.Shares = &v
	}
	if *cpu != (specs.LinuxCPU{}) {
		out.CPU = cpu
	}
	mem := &specs.LinuxMemory{}
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		mem.Limit = &v
		// No swap unless asked for: the limit of memory and swap together is that of memory.
		if h.Swap {
			mem.Swap = &v
		}
	}
	if v := r.GetMemorySwapLimitInBytes(); v != 0 && h.Swap {
		mem.Swap = &v
	}
	if *mem != (specs.LinuxMemory{}) {
		out.Memory = mem
	}
	if h.Hugetlb {
		for _, l := range r.GetHugepageLimits() {
			out.HugepageLimits = append(out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: l.GetPageSize(), Limit: l.GetLimit()})
		}
	}
	if len(r.GetUnified()) > 0 {
		out.Unified = maps.Clone(r.GetUnified())
	}
	return out
}
