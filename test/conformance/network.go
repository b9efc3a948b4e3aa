package conformance

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var networkCases = []testCase{
	{"Network", network},
	{"DNS", dns},
	{"HostPorts", hostPorts},
	{"Hostname", hostname},
	{"Sysctls", sysctls},
}

const hello = "while :; do echo hello | nc -l -p 8080; done"

func (p *sandbox) ip() string {
	p.t.Helper()
	r, err := p.PodSandboxStatus(p.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	must(p.t)(err)
	return r.GetStatus().GetNetwork().GetIp()
}

// answerLimit is how long one answer is waited for.
const answerLimit = 10 * time.Second

// dial reads what is said at an address, "" when nobody answers.
func dial(address string) string {
	conn, err := net.DialTimeout("tcp", address, answerLimit)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerLimit))
	b, _ := io.ReadAll(conn)
	return string(b)
}

func network(t *testing.T, s *suite) {
	a, b := s.pod(t, nil), s.pod(t, nil)
	a.run("main", nil, "sh", "-c", hello)
	client := b.sleeper("main", nil)
	if a.ip() == b.ip() {
		t.Errorf("two pods have the address %s", a.ip())
	}
	a.eventually("the pod to answer the host", func() bool { return dial(a.ip()+":8080") == "hello\n" })
	a.eventually("the pod to answer a pod", func() bool {
		r, err := b.exec(client, 60, "sh", "-c", "nc -w 10 "+a.ip()+" 8080 </dev/null")
		return err == nil && string(r.GetStdout()) == "hello\n"
	})
	b.expect(client, map[string]string{
		"ip -4 -o addr show eth0 | grep -c " +
			b.ip(): "1", "ip route | grep -c ^default": "1", "ip -o link show lo | grep -c LOOPBACK,UP": "1",
	})
}

func dns(t *testing.T, s *suite) {
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.DnsConfig = &runtimeapi.DNSConfig{
			Servers:  []string{"10.10.10.10", "10.10.10.11"},
			Searches: []string{"a.test", "b.test"}, Options: []string{"ndots:8"},
		}
	})
	id := p.sleeper("main", nil)
	lines := map[string]bool{}
	for l := range strings.Lines(p.sh(id, "cat /etc/resolv.conf") + "\n") {
		lines[strings.TrimSpace(l)] = true
	}
	for _, want := range []string{
		"search a.test b.test", "nameserver 10.10.10.10", "nameserver 10.10.10.11",
		"options ndots:8",
	} {
		if !lines[want] {
			t.Errorf("%q is not in %v", want, lines)
		}
	}
}

// hostAddress is one of the machine that is not loopback's, if it has one.
func hostAddress() string {
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

func hostPorts(t *testing.T, s *suite) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	must(t)(err)
	port := l.Addr().(*net.TCPAddr).Port
	must(t)(l.Close())
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.PortMappings = []*runtimeapi.PortMapping{{
			Protocol: runtimeapi.Protocol_TCP, ContainerPort: 8080,
			HostPort: int32(port),
		}}
	})
	p.run("main", nil, "sh", "-c", hello)
	other := s.pod(t, nil)
	client := other.sleeper("main", nil)
	hosts := []string{hostAddress()}
	if !s.lacks(t, "Loopback") {
		hosts = append(hosts, "127.0.0.1")
	}
	for _, host := range hosts {
		p.eventually("an answer at "+host, func() bool { return dial(net.JoinHostPort(host, itoa(port))) == "hello\n" })
	}
	p.eventually("an answer to a pod", func() bool {
		r, err := other.exec(client, 60, "sh", "-c", "nc -w 10 "+hostAddress()+" "+itoa(port)+" </dev/null")
		return err == nil && string(r.GetStdout()) == "hello\n"
	})
	_, err = s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
	must(t)(err)
	if got := dial(net.JoinHostPort(hostAddress(), itoa(port))); got != "" {
		t.Errorf("the port of a stopped pod answers %q", got)
	}
}

func hostname(t *testing.T, s *suite) {
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Hostname = "another-name" })
	id := p.sleeper("main", nil)
	p.expect(id, map[string]string{
		"hostname": "another-name", "cat /etc/hostname": "another-name",
		"echo $HOSTNAME": "another-name",
	})
}

func sysctls(t *testing.T, s *suite) {
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "20000 30000", "kernel.shm_rmid_forced": "1"}
	})
	id := p.sleeper("main", nil)
	p.expect(id, map[string]string{
		"cat /proc/sys/net/ipv4/ip_local_port_range": "20000\t30000",
		"cat /proc/sys/kernel/shm_rmid_forced":       "1",
	})
	if s.lacks(t, "WholeMachine") {
		return
	}
	cfg := s.config(t)
	cfg.Linux.Sysctls = map[string]string{"vm.swappiness": "1"}
	if r, err := s.RunPodSandbox(t.Context(), s.request(cfg)); err == nil {
		s.end(t, r.GetPodSandboxId())
		t.Error("a sysctl of the whole machine was taken")
	}
}
