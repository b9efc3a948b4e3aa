package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Ports has a pod wait for ports of the node that another one has. holding are the pods of other names that have not
// given back theirs.
func Ports(holding func(*Request) []*Share) Check {
	return func(r *Request) *Verdict {
		ports := hostPorts(r.Pod)
		if len(ports) == 0 {
			return nil
		}
		for _, other := range holding(r) {
			if port, ok := portConflict(ports, other.ports); ok {
				return waits("NodePorts", fmt.Sprintf("host port %s is in use by pod %s/%s; the pod starts when it is free",
					port, other.Pod.Namespace, other.Pod.Name))
			}
		}
		return nil
	}
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
