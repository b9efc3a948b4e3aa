package pod

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/status"
)

// verdict is what the node says to a pod that wants to run here.
type verdict struct {
	status.Waiting
	final bool // it will never be another one for this pod
}

// admit says whether a pod can run beside those that are here. A pod that cannot for the moment waits for its turn: unlike a
// pod of an API server, nobody would make a static pod again that was refused.
func admit(pod *corev1.Pod, here []*share, sysctls []string) (verdict, bool) {
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			if !allowedSysctl(s.Name, pod, sysctls) {
				return verdict{status.Waiting{Reason: "SysctlForbidden", Message: fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)}, true}, false
			}
		}
	}
	ports := hostPorts(pod)
	for _, other := range here {
		if port, ok := portConflict(ports, other.ports); ok {
			return verdict{Waiting: status.Waiting{
				Reason:  "NodePorts",
				Message: fmt.Sprintf("host port %s is in use by pod %s/%s; the pod starts when it is free", port, other.pod.Namespace, other.pod.Name),
			}}, false
		}
	}
	return verdict{}, true
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

// hostPort is a port of the node that a container wants. The zero address is every one.
type hostPort struct {
	protocol corev1.Protocol
	ip       string
	port     int32
}

func hostPorts(pod *corev1.Pod) []hostPort {
	var out []hostPort
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				if p.HostPort == 0 {
					continue
				}
				h := hostPort{p.Protocol, p.HostIP, p.HostPort}
				if h.protocol == "" {
					h.protocol = corev1.ProtocolTCP
				}
				if h.ip == "0.0.0.0" || h.ip == "::" {
					h.ip = ""
				}
				out = append(out, h)
			}
		}
	}
	return out
}

func portConflict(want, have []hostPort) (string, bool) {
	for _, p := range want {
		for _, q := range have {
			if p.protocol == q.protocol && p.port == q.port && (p.ip == q.ip || p.ip == "" || q.ip == "") {
				return fmt.Sprintf("%d/%s", p.port, p.protocol), true
			}
		}
	}
	return "", false
}
