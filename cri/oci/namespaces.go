package oci

import (
	"errors"
	"fmt"
	"path"
	"strings"

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

// CgroupPath is the cgroup of a sandbox or container under its pod's parent. A parent in systemd's notation
// ("kubepods-pod1.slice") names its ancestors by its prefixes; the leaf then is a scope.
func CgroupPath(parent, id string) string {
	base := path.Base(parent)
	stem, ok := strings.CutSuffix(base, ".slice")
	if !ok {
		return path.Join("/", parent, id)
	}
	leaf := "berth-" + id + ".scope"
	if strings.Contains(strings.Trim(parent, "/"), "/") || stem == "-" || stem == "" {
		return path.Join("/", strings.TrimSuffix(parent, "-.slice"), leaf)
	}
	dir, prefix := "/", ""
	for part := range strings.SplitSeq(stem, "-") {
		prefix += part
		dir = path.Join(dir, prefix+".slice")
		prefix += "-"
	}
	return path.Join(dir, leaf)
}
