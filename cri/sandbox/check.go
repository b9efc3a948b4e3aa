package sandbox

import (
	"fmt"
	"maps"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/oci"
)

// checkSandbox refuses what cannot be run, before anything is begun.
func checkSandbox(cfg *runtimeapi.PodSandboxConfig) error {
	meta := cfg.GetMetadata()
	opts := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch {
	case cfg == nil || meta == nil:
		return fault.Invalidf("sandbox config must include metadata")
	case meta.GetName() == "" || meta.GetUid() == "" || meta.GetNamespace() == "":
		return fault.Invalidf("sandbox metadata must include name, namespace and uid")
	case strings.Contains(cfg.GetLinux().GetCgroupParent(), ".."):
		return fault.Invalidf("cgroup parent %q leads out of its tree", cfg.GetLinux().GetCgroupParent())
	}
	if _, err := oci.UserNamespace(opts.GetUsernsOptions()); err != nil {
		return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	return checkSysctls(cfg)
}

// checkSysctls refuses what would be set for the whole host: the kernel keeps these values in namespaces, and the pod
// has to have that namespace to itself.
func checkSysctls(cfg *runtimeapi.PodSandboxConfig) error {
	opts := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	for key := range cfg.GetLinux().GetSysctls() {
		name := sysctlName(key)
		var mode runtimeapi.NamespaceMode
		kind := ""
		switch {
		case strings.HasPrefix(name, "net."):
			kind, mode = "network", opts.GetNetwork()
		case name == "kernel.domainname":
			kind, mode = "uts", opts.GetNetwork()
		case strings.HasPrefix(name, "fs.mqueue."), name == "kernel.sem", strings.HasPrefix(name, "kernel.shm"),
			strings.HasPrefix(name, "kernel.msg"):
			kind, mode = "ipc", opts.GetIpc()
		default:
			return fault.Invalidf("sysctl %q is not kept in a namespace, it can only be set for the whole machine", key)
		}
		if mode == runtimeapi.NamespaceMode_NODE {
			return fault.Invalidf("sysctl %q is not allowed in the host's %s namespace", key, kind)
		}
	}
	return nil
}

// sysctlName turns the notation with slashes into that with dots: in it the dots of an interface's name are not
// separators.
func sysctlName(key string) string {
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '/' {
		return strings.NewReplacer("/", ".", ".", "/").Replace(key)
	}
	return key
}

// sysctlsOf also allows, in a network of the pod's own, what needs a capability only to protect other users of the
// network: low ports and ping.
func sysctlsOf(cfg *runtimeapi.PodSandboxConfig) map[string]string {
	out := map[string]string{}
	if cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		out["net.ipv4.ip_unprivileged_port_start"] = "0"
		out["net.ipv4.ping_group_range"] = fmt.Sprintf("0 %d", 1<<31-1)
	}
	for k, v := range cfg.GetLinux().GetSysctls() {
		out[sysctlName(k)] = v
	}
	return maps.Clone(out)
}
