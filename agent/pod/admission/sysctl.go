package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Sysctls refuses pods that set others than the safe ones and those that are allowed, "net.core.*" too.
func Sysctls(allowed []string) Check {
	return func(r *Request) *Verdict {
		sc := r.Pod.Spec.SecurityContext
		if sc == nil {
			return nil
		}
		for _, s := range sc.Sysctls {
			if !allowedSysctl(s.Name, r.Pod, allowed) {
				return never("SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name))
			}
		}
		return nil
	}
}

// safeSysctls are those that are namespaced and cannot harm the node, by the API's list.
func safeSysctls() []string {
	return []string{
		"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
		"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
		"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
	}
}

func allowedSysctl(name string, pod *corev1.Pod, allowed []string) bool {
	name = strings.ReplaceAll(name, "/", ".")
	// In the node's own namespaces a sysctl would be the node's.
	if pod.Spec.HostNetwork && strings.HasPrefix(name, "net.") || pod.Spec.HostIPC && strings.HasPrefix(name, "kernel.") {
		return false
	}
	if slices.Contains(safeSysctls(), name) {
		return true
	}
	for _, s := range allowed {
		if prefix, wild := strings.CutSuffix(s, "*"); s == name || wild && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
