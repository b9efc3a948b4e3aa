package nri

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// editor changes a specification in the small steps that the NRI library asks for.
type editor struct{ s *specs.Spec }

func (e editor) Spec() *specs.Spec { return e.s }

func (e editor) AddAnnotation(key, value string) { put(&e.s.Annotations, key, value) }
func (e editor) RemoveAnnotation(key string)     { delete(e.s.Annotations, key) }

func put(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

func (e editor) AddProcessEnv(name, value string) {
	kv := name + "=" + value
	i := slices.IndexFunc(e.s.Process.Env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
	if i < 0 {
		e.s.Process.Env = append(e.s.Process.Env, kv)
	} else {
		e.s.Process.Env[i] = kv
	}
}
func (e editor) ClearProcessEnv()              { e.s.Process.Env = nil }
func (e editor) SetProcessArgs(args []string)  { e.s.Process.Args = args }
func (e editor) SetProcessOOMScoreAdj(adj int) { e.s.Process.OOMScoreAdj = &adj }

func (e editor) AddMount(m specs.Mount) { e.s.Mounts = append(e.s.Mounts, m) }
func (e editor) Mounts() []specs.Mount  { return e.s.Mounts }
func (e editor) ClearMounts()           { e.s.Mounts = nil }
func (e editor) RemoveMount(dest string) {
	e.s.Mounts = without(e.s.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}

// without leaves the old list as it is: somebody may still look at it.
func without[T any](list []T, gone func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), gone)
}

func (e editor) hooks() *specs.Hooks {
	if e.s.Hooks == nil {
		e.s.Hooks = &specs.Hooks{}
	}
	return e.s.Hooks
}

//nolint:staticcheck // the oldest kind of hook, which plugins may still ask for
func (e editor) AddPreStartHook(h specs.Hook) { e.hooks().Prestart = append(e.hooks().Prestart, h) }

func (e editor) AddPostStartHook(h specs.Hook) { e.hooks().Poststart = append(e.hooks().Poststart, h) }

func (e editor) AddPostStopHook(h specs.Hook) { e.hooks().Poststop = append(e.hooks().Poststop, h) }

func (e editor) AddDevice(d specs.LinuxDevice) { e.s.Linux.Devices = append(e.s.Linux.Devices, d) }
func (e editor) RemoveDevice(path string) {
	e.s.Linux.Devices = without(e.s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

func (e editor) AddOrReplaceLinuxNamespace(kind, path string) error {
	_ = e.RemoveLinuxNamespace(kind)
	e.s.Linux.Namespaces = append(e.s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.LinuxNamespaceType(kind), Path: path})
	return nil
}

func (e editor) RemoveLinuxNamespace(kind string) error {
	e.s.Linux.Namespaces = without(e.s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return string(n.Type) == kind })
	return nil
}

func (e editor) AddLinuxSysctl(key, value string) { put(&e.s.Linux.Sysctl, key, value) }
func (e editor) RemoveLinuxSysctl(key string)     { delete(e.s.Linux.Sysctl, key) }
func (e editor) SetLinuxCgroupsPath(path string)  { e.s.Linux.CgroupsPath = path }
func (e editor) SetLinuxRootPropagation(mode string) error {
	e.s.Linux.RootfsPropagation = mode
	return nil
}

func (e editor) resources() *specs.LinuxResources {
	if e.s.Linux.Resources == nil {
		e.s.Linux.Resources = &specs.LinuxResources{}
	}
	return e.s.Linux.Resources
}

func (e editor) cpu() *specs.LinuxCPU {
	r := e.resources()
	if r.CPU == nil {
		r.CPU = &specs.LinuxCPU{}
	}
	return r.CPU
}

func (e editor) memory() *specs.LinuxMemory {
	r := e.resources()
	if r.Memory == nil {
		r.Memory = &specs.LinuxMemory{}
	}
	return r.Memory
}

func (e editor) SetLinuxResourcesCPUCpus(cpus string)        { e.cpu().Cpus = cpus }
func (e editor) SetLinuxResourcesCPUMems(mems string)        { e.cpu().Mems = mems }
func (e editor) SetLinuxResourcesCPUPeriod(v uint64)         { e.cpu().Period = &v }
func (e editor) SetLinuxResourcesCPUQuota(v int64)           { e.cpu().Quota = &v }
func (e editor) SetLinuxResourcesCPUShares(v uint64)         { e.cpu().Shares = &v }
func (e editor) SetLinuxResourcesCPURealtimePeriod(v uint64) { e.cpu().RealtimePeriod = &v }
func (e editor) SetLinuxResourcesCPURealtimeRuntime(v int64) { e.cpu().RealtimeRuntime = &v }
func (e editor) SetLinuxResourcesMemoryLimit(v int64)        { e.memory().Limit = &v }
func (e editor) SetLinuxResourcesMemorySwap(v int64)         { e.memory().Swap = &v }
func (e editor) AddLinuxResourcesUnified(key, value string)  { put(&e.resources().Unified, key, value) }

func (e editor) AddLinuxResourcesHugepageLimit(size string, n uint64) {
	r := e.resources()
	r.HugepageLimits = append(without(r.HugepageLimits, func(h specs.LinuxHugepageLimit) bool { return h.Pagesize == size }), specs.LinuxHugepageLimit{Pagesize: size, Limit: n})
}

func (e editor) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	r := e.resources()
	r.Devices = append(r.Devices, specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}
