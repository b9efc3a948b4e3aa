package nri

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// editor changes a specification in the small steps that the NRI library asks for, which wants one type with all of
// them: it has nothing but its parts.
type editor struct {
	processEditor
	mountEditor
	hookEditor
	linuxEditor
	resourceEditor
	s *specs.Spec
}

func newEditor(s *specs.Spec) editor {
	return editor{processEditor{s}, mountEditor{s}, hookEditor{s}, linuxEditor{s}, resourceEditor{s}, s}
}

func (e editor) Spec() *specs.Spec { return e.s }

func (e editor) AddAnnotation(key, value string) { put(&e.s.Annotations, key, value) }
func (e editor) RemoveAnnotation(key string)     { delete(e.s.Annotations, key) }

func put(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// processEditor is the part of [editor] that is about the process.
type processEditor struct{ of *specs.Spec }

func (e processEditor) AddProcessEnv(name, value string) {
	kv := name + "=" + value
	i := slices.IndexFunc(e.of.Process.Env, func(have string) bool { return strings.HasPrefix(have, name+"=") })
	if i < 0 {
		e.of.Process.Env = append(e.of.Process.Env, kv)
	} else {
		e.of.Process.Env[i] = kv
	}
}
func (e processEditor) ClearProcessEnv()              { e.of.Process.Env = nil }
func (e processEditor) SetProcessArgs(args []string)  { e.of.Process.Args = args }
func (e processEditor) SetProcessOOMScoreAdj(adj int) { e.of.Process.OOMScoreAdj = &adj }

// mountEditor is the part of [editor] that is about mounts.
type mountEditor struct{ of *specs.Spec }

func (e mountEditor) AddMount(m specs.Mount) { e.of.Mounts = append(e.of.Mounts, m) }
func (e mountEditor) Mounts() []specs.Mount  { return e.of.Mounts }
func (e mountEditor) ClearMounts()           { e.of.Mounts = nil }
func (e mountEditor) RemoveMount(dest string) {
	e.of.Mounts = without(e.of.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}

// without leaves the old list as it is: somebody may still look at it.
func without[T any](list []T, gone func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(list), gone)
}

// hookEditor is the part of [editor] that is about hooks.
type hookEditor struct{ of *specs.Spec }

func (e hookEditor) hooks() *specs.Hooks {
	if e.of.Hooks == nil {
		e.of.Hooks = &specs.Hooks{}
	}
	return e.of.Hooks
}

//nolint:staticcheck // the oldest kind of hook, which plugins may still ask for
func (e hookEditor) AddPreStartHook(h specs.Hook) { e.hooks().Prestart = append(e.hooks().Prestart, h) }

func (e hookEditor) AddPostStartHook(h specs.Hook) {
	e.hooks().Poststart = append(e.hooks().Poststart, h)
}

func (e hookEditor) AddPostStopHook(h specs.Hook) { e.hooks().Poststop = append(e.hooks().Poststop, h) }

// linuxEditor is the part of [editor] that is about devices, namespaces, and what else Linux has.
type linuxEditor struct{ of *specs.Spec }

func (e linuxEditor) AddDevice(d specs.LinuxDevice) {
	e.of.Linux.Devices = append(e.of.Linux.Devices, d)
}

func (e linuxEditor) RemoveDevice(path string) {
	e.of.Linux.Devices = without(e.of.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

func (e linuxEditor) AddOrReplaceLinuxNamespace(kind, path string) error {
	_ = e.RemoveLinuxNamespace(kind)
	e.of.Linux.Namespaces = append(e.of.Linux.Namespaces, specs.LinuxNamespace{Type: specs.LinuxNamespaceType(kind), Path: path})
	return nil
}

func (e linuxEditor) RemoveLinuxNamespace(kind string) error {
	e.of.Linux.Namespaces = without(e.of.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return string(n.Type) == kind })
	return nil
}

func (e linuxEditor) AddLinuxSysctl(key, value string) { put(&e.of.Linux.Sysctl, key, value) }
func (e linuxEditor) RemoveLinuxSysctl(key string)     { delete(e.of.Linux.Sysctl, key) }
func (e linuxEditor) SetLinuxCgroupsPath(path string)  { e.of.Linux.CgroupsPath = path }
func (e linuxEditor) SetLinuxRootPropagation(mode string) error {
	e.of.Linux.RootfsPropagation = mode
	return nil
}
