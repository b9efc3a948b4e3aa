package nri

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// editor changes a specification in the small steps that the NRI library asks for.
type editor struct {
	resourceEditor
	s *specs.Spec
}

func newEditor(s *specs.Spec) editor { return editor{resourceEditor{s}, s} }

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
