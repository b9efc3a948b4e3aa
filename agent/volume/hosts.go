package volume

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// HostsFile is the content of a pod's /etc/hosts: a copy of the node's for a pod in the node's network, else the names
// every machine has for itself and the pod's own name for each of its addresses. The aliases of the pod come last. The
// first line is kubelet's: by it others tell that a file is not the image's.
func HostsFile(pod *corev1.Pod, hostname, fqdn string, ips []string, node []byte) []byte {
	var b bytes.Buffer
	if pod.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(node)
		if len(node) > 0 && node[len(node)-1] != '\n' {
			b.WriteByte('\n')
		}
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\n" +
			"fe00::1\tip6-allnodes\n" +
			"fe00::2\tip6-allrouters\n")
		for _, ip := range ips {
			if fqdn != "" && fqdn != hostname {
				fmt.Fprintf(&b, "%s\t%s\t%s\n", ip, fqdn, hostname)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# The pod's hostAliases.\n")
	}
	for _, a := range pod.Spec.HostAliases {
		fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
	return b.Bytes()
}
