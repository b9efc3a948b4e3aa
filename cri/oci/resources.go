package oci

import (
	"maps"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

func resources(in *Input, s *specs.Spec) error {
	r := Resources(in.Container.GetLinux().GetResources(), in.Host)
	r.Devices = s.Linux.Resources.Devices
	if in.Host.Systemd {
		// A scope would have systemd's own default.
		unlimited := int64(-1)
		r.Pids = &specs.LinuxPids{Limit: &unlimited}
	}
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
	unified := maps.Clone(r.GetUnified())
	if v, err := strconv.ParseUint(unified[burstFile], 10, 64); err == nil {
		// The specification has a field for it, which is written to v1's file as well.
		cpu.Burst = &v
		delete(unified, burstFile)
	}
	if _, given := unified[WeightFile]; cpu.Shares != nil && h.Unified && !given {
		unified = weigh(cpu, unified)
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
	if len(unified) > 0 {
		out.Unified = unified
	}
	return out
}

// WeightFile is where cgroup v2 has what are shares on v1.
const WeightFile = "cpu.weight"

const burstFile = "cpu.max.burst"

// Weigh says the shares of a specification as the weight of cgroup v2.
func Weigh(r *specs.LinuxResources) {
	if r != nil && r.CPU != nil && r.CPU.Shares != nil {
		r.Unified = weigh(r.CPU, r.Unified)
	}
}

// weigh makes a weight of shares, so that it is the kernel's conversion everywhere: libraries have had two of their
// own.
func weigh(cpu *specs.LinuxCPU, unified map[string]string) map[string]string {
	if unified == nil {
		unified = map[string]string{}
	}
	unified[WeightFile] = strconv.FormatUint(cgroups.Weight(*cpu.Shares), 10)
	cpu.Shares = nil
	return unified
}
