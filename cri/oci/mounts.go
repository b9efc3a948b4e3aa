package oci

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// mounts puts the runtime's own mounts first, the pod's files and the container's mounts behind, parents before
// children. What the container mounts itself replaces the runtime's at the same place.
func mounts(in *Input, s *specs.Spec) error {
	own, rootPropagation, err := containerMounts(in)
	if err != nil {
		return err
	}
	s.Linux.RootfsPropagation = rootPropagation
	taken := map[string]bool{}
	for _, m := range own {
		taken[m.Destination] = true
	}
	wanted := func(m specs.Mount) bool {
		return !taken[m.Destination] && (!taken["/dev"] || !strings.HasPrefix(m.Destination, "/dev/") || m.Type == "bind")
	}
	for _, m := range systemMounts(in) {
		if !wanted(m) {
			continue
		}
		s.Mounts = append(s.Mounts, m)
		// There is one sysfs for all mounts of a network namespace. With "ro" the first container of a pod would make
		// it read-only for all of them, privileged ones too, and libcontainer drops "rro" here; a read-only path is a
		// mount of its own.
		if m.Type == "sysfs" && !security(in.Container).GetPrivileged() {
			s.Linux.ReadonlyPaths = append(s.Linux.ReadonlyPaths, m.Destination)
		}
	}
	system := len(s.Mounts)
	// A volume at /etc comes below the pod's /etc/hosts.
	for _, m := range podFiles(in) {
		if wanted(m) {
			s.Mounts = append(s.Mounts, m)
		}
	}
	for _, v := range in.Volumes {
		if m := (specs.Mount{Destination: v.Path, Type: "bind", Source: v.Source, Options: []string{"rbind", "rprivate", "rw"}}); wanted(m) {
			s.Mounts = append(s.Mounts, m)
		}
	}
	s.Mounts = append(s.Mounts, own...)
	depth := func(p string) int { return strings.Count(p, "/") }
	slices.SortStableFunc(s.Mounts[system:], func(a, b specs.Mount) int { return depth(a.Destination) - depth(b.Destination) })
	return nil
}

// ttyGroup is the group of terminals in nearly all images.
const ttyGroup = 5

// systemMounts are the file systems every container has.
func systemMounts(in *Input) []specs.Mount {
	mode := "ro"
	if security(in.Container).GetPrivileged() {
		mode = "rw"
	}
	pts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if in.IDs == nil || in.IDs.GIDs.Size > ttyGroup {
		pts = append(pts, fmt.Sprintf("gid=%d", ttyGroup))
	}
	sys := specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "rw"}}
	if in.IDs != nil && in.Namespaces.Network == "" {
		// The kernel shows sysfs only to who owns the network that it would show; the host's can be bound nevertheless.
		sys = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}}
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: pts},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		sys,
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", mode}},
	}
}

// podFiles are the files and the shared memory of the pod, as its containers see them.
func podFiles(in *Input) []specs.Mount {
	mode := "rw"
	if security(in.Container).GetReadonlyRootfs() {
		mode = "ro"
	}
	var out []specs.Mount
	bind := func(src, dst string, options ...string) {
		if src != "" {
			out = append(out, specs.Mount{Destination: dst, Type: "bind", Source: src, Options: append([]string{"rbind", "rprivate"}, options...)})
		}
	}
	bind(in.Files.Hosts, "/etc/hosts", mode)
	bind(in.Files.Hostname, "/etc/hostname", mode)
	bind(in.Files.ResolvConf, "/etc/resolv.conf", mode)
	bind(in.Files.Shm, "/dev/shm", "nosuid", "noexec", "nodev", "rw") // as it is mounted on the host
	return out
}

// containerMounts also returns the propagation the container's root needs for them: mounts reach a place inside only
// through a root that lets them.
func containerMounts(in *Input) (out []specs.Mount, rootPropagation string, err error) {
	for i, m := range in.Container.GetMounts() {
		src := m.GetHostPath()
		if m.GetImage() != nil {
			if i >= len(in.ImageMounts) || in.ImageMounts[i] == "" {
				return nil, "", fmt.Errorf("mount %s: image %s is not mounted", m.GetContainerPath(), m.GetImage().GetImage())
			}
			src = in.ImageMounts[i]
		}
		opts, err := mountOptions(m)
		if err != nil {
			return nil, "", err
		}
		switch m.GetPropagation() {
		case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
			rootPropagation = "rshared"
		case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
			if rootPropagation == "" {
				rootPropagation = "rslave"
			}
		}
		one := specs.Mount{Destination: path.Clean("/" + m.GetContainerPath()), Type: "bind", Source: src, Options: opts}
		if m.GetImage() == nil {
			// Else its files have the pod's ids already, and the kernel cannot map a stack of layers.
			one.UIDMappings, one.GIDMappings = idMappings(m.GetUidMappings()), idMappings(m.GetGidMappings())
		}
		out = append(out, one)
	}
	return out, rootPropagation, nil
}

func mountOptions(m *runtimeapi.Mount) ([]string, error) {
	if m.GetContainerPath() == "" {
		return nil, fmt.Errorf("mount of %q has no path in the container", m.GetHostPath())
	}
	opts := []string{"rbind"}
	switch m.GetPropagation() {
	case runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		opts = append(opts, "rshared")
	case runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		opts = append(opts, "rslave")
	default:
		opts = append(opts, "rprivate")
	}
	readonly := m.GetReadonly() || m.GetImage() != nil
	switch {
	case m.GetRecursiveReadOnly() && !readonly:
		return nil, fmt.Errorf("mount %s: recursively read-only, but not read-only", m.GetContainerPath())
	case m.GetRecursiveReadOnly() && m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return nil, fmt.Errorf("mount %s: recursively read-only needs private propagation, not %s", m.GetContainerPath(), m.GetPropagation())
	case m.GetRecursiveReadOnly():
		opts = append(opts, "rro")
	case readonly:
		opts = append(opts, "ro")
	default:
		opts = append(opts, "rw")
	}
	return append(opts, m.GetMountOptions()...), nil
}

func idMappings(in []*runtimeapi.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}
