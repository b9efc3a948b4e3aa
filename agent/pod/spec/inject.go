package spec

import (
	"maps"
	"path"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/cgroups/kube"
)

// Injection is what a container gets for the devices that it was given. Where several want the same, the first has it,
// and what the pod itself says wins over all.
type Injection struct {
	Envs        map[string]string
	Annotations map[string]string
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	CDIDevices  []string // fully qualified names
	Pin         kube.Pin
}

// Add adds what a device plugin has answered.
func (in *Injection) Add(r *pluginapi.ContainerAllocateResponse) {
	in.Envs, in.Annotations = below(in.Envs, r.GetEnvs()), below(in.Annotations, r.GetAnnotations())
	for _, d := range r.GetDevices() {
		if !slices.ContainsFunc(in.Devices, func(had *runtimeapi.Device) bool { return had.GetContainerPath() == d.GetContainerPath() }) {
			in.Devices = append(in.Devices, &runtimeapi.Device{HostPath: d.GetHostPath(), ContainerPath: d.GetContainerPath(), Permissions: d.GetPermissions()})
		}
	}
	for _, m := range r.GetMounts() {
		if !slices.ContainsFunc(in.Mounts, func(had *runtimeapi.Mount) bool { return had.GetContainerPath() == m.GetContainerPath() }) {
			in.Mounts = append(in.Mounts, &runtimeapi.Mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), Readonly: m.GetReadOnly()})
		}
	}
	for _, c := range r.GetCdiDevices() {
		in.AddCDI(c.GetName())
	}
}

// AddCDI adds CDI devices, each once.
func (in *Injection) AddCDI(names ...string) {
	for _, n := range names {
		if !slices.Contains(in.CDIDevices, n) {
			in.CDIDevices = append(in.CDIDevices, n)
		}
	}
}

// below is had with what it does not have.
func below(had, more map[string]string) map[string]string {
	out := maps.Clone(more)
	if out == nil {
		return had
	}
	maps.Copy(out, had)
	return out
}

// mountsBeside are the injected mounts at paths where the container has nothing of its own.
func (in *Injection) mountsBeside(taken map[string]bool) []*runtimeapi.Mount {
	return slices.DeleteFunc(slices.Clone(in.Mounts), func(m *runtimeapi.Mount) bool { return taken[path.Clean(m.GetContainerPath())] })
}

// devicesBeside are the container's own devices, and those that are injected at other paths.
func (in *Injection) devicesBeside(own []*runtimeapi.Device) []*runtimeapi.Device {
	out := slices.Clone(own)
	for _, d := range in.Devices {
		if !slices.ContainsFunc(own, func(had *runtimeapi.Device) bool {
			return path.Clean(had.GetContainerPath()) == path.Clean(d.GetContainerPath())
		}) {
			out = append(out, d)
		}
	}
	return out
}

func (in *Injection) cdiDevices() []*runtimeapi.CDIDevice {
	var out []*runtimeapi.CDIDevice
	for _, n := range in.CDIDevices {
		out = append(out, &runtimeapi.CDIDevice{Name: n})
	}
	return out
}

// under adds variables that the container does not set itself.
func (e *environment) under(envs map[string]string) {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(envs)) {
		if _, ok := e.values[n]; !ok {
			names = append(names, n)
			e.values[n] = envs[n]
		}
	}
	e.names = append(names, e.names...)
}
