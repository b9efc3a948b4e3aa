package system

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// serves is a container with a web server in busybox.
func serves(extra string) string {
	return "\n  containers:\n  - name: main\n    image: " + image +
		"\n    command: [sh, -c, 'mkdir /www; echo -n served > /www/x; exec httpd -f -p 8080 -h /www']\n" +
		"    readinessProbe: {tcpSocket: {port: 8080}}\n" + extra
}

// networkCases are about names, addresses, ports and namespaces.
var networkCases = []fieldCase{
	{
		name: "own-network", fields: "hostNetwork",
		spec: prints("ip -o link | cut -d: -f2 | cut -d@ -f1 | tr -d ' ' | tr '\\n' ' '", ""), want: []string{"lo eth0"},
	},
	{
		name: "host-network", fields: "hostNetwork hostname",
		spec: "\n  hostNetwork: true" + runs(""),
		check: func(t *testing.T, n *Node, _ *corev1.Pod) {
			host, _ := os.Hostname()
			if got := strings.TrimSpace(n.sh("host-network", "hostname")); got != host {
				t.Errorf("host name %q, the node's is %q", got, host)
			}
		},
	},
	{
		name: "host-pid", fields: "hostPID",
		spec: "\n  hostPID: true" + runs(""),
		check: func(t *testing.T, n *Node, _ *corev1.Pod) {
			own := fmt.Sprint(os.Getpid())
			if got := n.sh("host-pid", "test -d /proc/"+own+" && echo seen"); strings.TrimSpace(got) != "seen" {
				t.Error("a process of the node is not seen")
			}
		},
	},
	{
		name: "host-ipc", fields: "hostIPC",
		spec: "\n  hostIPC: true" + runs(""),
		check: func(t *testing.T, n *Node, _ *corev1.Pod) {
			want, _ := os.Readlink("/proc/self/ns/ipc")
			if got := strings.TrimSpace(n.sh("host-ipc", "readlink /proc/self/ns/ipc")); got != want {
				t.Errorf("IPC namespace %s, the node's is %s", got, want)
			}
		},
	},
	{
		name: "shared-ipc", fields: "hostIPC",
		spec: strings.Replace(runs(""), "  containers:\n",
			"  containers:\n  - {name: other, image: "+image+", command: [sleep, '1000']}\n", 1),
		check: func(t *testing.T, n *Node, _ *corev1.Pod) {
			for _, ns := range []string{"ipc", "uts", "net"} {
				a := n.must("exec", "shared-ipc", "-c", "main", "--", "readlink", "/proc/self/ns/"+ns)
				if b := n.must("exec", "shared-ipc", "-c", "other", "--", "readlink", "/proc/self/ns/"+ns); a != b {
					t.Errorf("the containers' %s namespaces are %s and %s", ns, a, b)
				}
			}
		},
	},
	{
		name: "hostname-default", fields: "hostname", spec: prints("hostname", ""), want: []string{"hostname-default-node"},
	},
	{
		name: "hostname-fqdn", fields: "setHostnameAsFQDN subdomain",
		spec: "\n  hostname: a\n  subdomain: sub\n  setHostnameAsFQDN: true" +
			prints("hostname; grep -c 'a.sub.default.svc.cluster.local' /etc/hosts", ""),
		want: []string{"a.sub.default.svc.cluster.local", "1"},
	},
	{
		name: "hostname-not-fqdn", fields: "setHostnameAsFQDN",
		spec: "\n  hostname: a\n  subdomain: sub\n  setHostnameAsFQDN: false" + prints("hostname", ""), want: []string{"a"},
	},
	{
		name: "hosts-file", fields: "hostname",
		spec: prints("grep -c '^127.0.0.1.localhost' /etc/hosts; grep \"$(hostname)\" /etc/hosts | cut -f1 | grep -c $(ip "+
			"-4 -o addr show eth0 | tr -s ' ' | cut -d' ' -f4 | cut -d/ -f1)", ""),
		want: []string{"1", "1"},
	},
	{
		name: "host-aliases-host-network", fields: "hostAliases.ip hostNetwork",
		spec: "\n  hostNetwork: true\n  hostAliases: [{ip: 10.9.8.7, hostnames: [there.local]}]" +
			prints("grep -c 'there.local' /etc/hosts", ""), want: []string{"1"},
	},
	{
		name: "dns-default", fields: "dnsPolicy",
		spec: "\n  dnsPolicy: Default" +
			prints("grep -c . /etc/resolv.conf > /dev/null && echo there", ""), want: []string{"there"},
	},
	{
		name: "dns-cluster-first-host", fields: "dnsPolicy hostNetwork",
		spec: "\n  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet" +
			prints("test -e /etc/resolv.conf && echo there", ""), want: []string{"there"},
	},
	{
		name: "dns-added", fields: "dnsConfig.nameservers dnsConfig.searches dnsConfig.options.name",
		spec: "\n  dnsPolicy: Default\n  dnsConfig: {searches: [own.example], options: [{name: edns0}, {name: ndots, " +
			"value: '7'}]}" +
			prints("grep -c '^search.*own.example' /etc/resolv.conf; grep -c '^options.*edns0' /etc/resolv.conf; grep -c "+
				"'ndots:7' /etc/resolv.conf", ""),
		want: []string{"1", "1", "1"},
	},
	{
		name: "port-of-host", fields: "containers.ports.containerPort containers.ports.hostPort containers.ports.protocol",
		spec:  serves("    ports: [{containerPort: 8080, hostPort: $FREE, protocol: TCP}]\n"),
		check: reachedAt(""),
	},
	{
		name: "port-of-host-address", fields: "containers.ports.hostIP containers.ports.name",
		spec:  serves("    ports: [{name: web, containerPort: 8080, hostPort: $FREE, hostIP: 127.0.0.1}]\n"),
		check: reachedAt("127.0.0.1"),
	},
	{
		name: "port-of-host-udp", fields: "containers.ports.protocol",
		spec: runs("ports: [{containerPort: 9000, hostPort: $FREE, protocol: UDP}]\n"),
		check: func(t *testing.T, n *Node, p *corev1.Pod) {
			conn, err := net.Dial("udp", net.JoinHostPort(p.Status.HostIP, fmt.Sprint(p.Spec.Containers[0].Ports[0].HostPort)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			n.eventually("a datagram to arrive", func() error {
				_, _ = conn.Write([]byte("hello")) // told of one that was not taken
				// Nobody in the pod has the port, but its kernel counts what arrives for it.
				if out := n.sh("port-of-host-udp", "awk '/^Udp: [0-9]/ {print $3}' /proc/net/snmp"); strings.TrimSpace(out) == "0" {
					return errors.New("the pod's counter is zero")
				}
				return nil
			})
		},
	},
	{
		name: "share-pid-off", fields: "shareProcessNamespace",
		spec: "\n  shareProcessNamespace: false" + prints("cut -d' ' -f1 /proc/self/stat", ""), want: []string{"1"},
	},
	{
		name: "loopback", fields: "", spec: prints("ping -c1 127.0.0.1 > /dev/null && echo lo", ""), want: []string{"lo"},
	},
}

// reachedAt asks a pod at a port of the node.
func reachedAt(ip string) func(*testing.T, *Node, *corev1.Pod) {
	return func(t *testing.T, n *Node, p *corev1.Pod) {
		at := ip
		if at == "" {
			at = p.Status.HostIP
		}
		url := "http://" + net.JoinHostPort(at, fmt.Sprint(p.Spec.Containers[0].Ports[0].HostPort)) + "/x"
		n.eventually("an answer at "+url, func() error {
			resp, err := http.Get(url)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); string(b) != "served" {
				return fmt.Errorf("%q, %w", b, err)
			}
			return nil
		})
	}
}
