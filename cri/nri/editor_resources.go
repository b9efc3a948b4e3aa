package nri

import specs "github.com/opencontainers/runtime-spec/specs-go"

// resourceEditor is the part of [editor] that is about what a container may use.
type resourceEditor struct{ of *specs.Spec }

func (e resourceEditor) resources() *specs.LinuxResources {
	if e.of.Linux.Resources == nil {
		e.of.Linux.Resources = &specs.LinuxResources{}
	}
	return e.of.Linux.Resources
}

func (e resourceEditor) cpu() *specs.LinuxCPU {
	r := e.resources()
	if r.CPU == nil {
		r.CPU = &specs.LinuxCPU{}
	}
	return r.CPU
}

func (e resourceEditor) memory() *specs.LinuxMemory {
	r := e.resources()
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	return r.Memory
}

func (e resourceEditor) SetLinuxResourcesCPUCpus(cpus string)        { e.cpu().Cpus = cpus }
func (e resourceEditor) SetLinuxResourcesCPUMems(mems string)        { e.cpu().Mems = mems }
func (e resourceEditor) SetLinuxResourcesCPUPeriod(v uint64)         { e.cpu().Period = &v }
func (e resourceEditor) SetLinuxResourcesCPUQuota(v int64)           { e.cpu().Quota = &v }
func (e resourceEditor) SetLinuxResourcesCPUShares(v uint64)         { e.cpu().Shares = &v }
func (e resourceEditor) SetLinuxResourcesCPURealtimePeriod(v uint64) { e.cpu().RealtimePeriod = &v }
func (e resourceEditor) SetLinuxResourcesCPURealtimeRuntime(v int64) { e.cpu().RealtimeRuntime = &v }
func (e resourceEditor) SetLinuxResourcesMemoryLimit(v int64)        { e.memory().Limit = &v }
func (e resourceEditor) SetLinuxResourcesMemorySwap(v int64)         { e.memory().Swap = &v }
func (e resourceEditor) AddLinuxResourcesUnified(key, value string) {
	put(&e.resources().Unified, key, value)
}

func (e resourceEditor) AddLinuxResourcesHugepageLimit(size string, n uint64) {
	r := e.resources()
	others := without(r.HugepageLimits, func(h specs.LinuxHugepageLimit) bool { return h.Pagesize == size })
	r.HugepageLimits = append(others, specs.LinuxHugepageLimit{Pagesize: size, Limit: n})
}

func (e resourceEditor) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	r := e.resources()
	r.Devices = append(r.Devices,
		specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}
