package oci

import (
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func namespaces(in *Input, s *specs.Spec) error {
	opts := security(in.Container).GetNamespaceOptions()
	if (in.IDs != nil) != (in.Namespaces.User != "") {
		return errors.New("ids of the pod's own and a user namespace belong together")
	}
	add := func(t specs.LinuxNamespaceType, path string) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
	}
	add(specs.MountNamespace, "")
	if p := in.Namespaces.User; p != "" {
		add(specs.UserNamespace, p)
	}
	// An empty path would be a namespace of the container's own, so the host's are left out.
	if p := in.Namespaces.Network; p != "" {
		add(specs.NetworkNamespace, p)
	}
	if p := in.Namespaces.IPC; p != "" {
		add(specs.IPCNamespace, p)
	}
	if p := in.Namespaces.UTS; p != "" {
		add(specs.UTSNamespace, p)
	}
	switch opts.GetPid() {
	case runtimeapi.NamespaceMode_NODE:
	case runtimeapi.NamespaceMode_CONTAINER:
		add(specs.PIDNamespace, "")
	default:
		if in.Namespaces.PID == "" {
			return fmt.Errorf("pid namespace %s is asked for, but there is none", opts.GetPid())
		}
		add(specs.PIDNamespace, in.Namespaces.PID)
	}
	// On v1 the container is to see its cgroups where they are on the host; privileged ones manage the host's.
	if in.Host.Unified && !security(in.Container).GetPrivileged() {
		add(specs.CgroupNamespace, "")
	}
	return nil
}
