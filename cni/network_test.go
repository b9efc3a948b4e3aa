package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestPods(t *testing.T) {
	out := outside(t)
	n := open(t, testConfig(t, testBridge, testCIDR))
	a, b := setup(t, n, "aaa"), setup(t, n, "bbb")
	if a.ip() != "10.213.0.2" || b.ip() != "10.213.0.3" {
		t.Errorf("addresses: got %s and %s, want the first two", a.ip(), b.ip())
	}
	if in := a.Interfaces; len(in) != 1 || in[0].Name != "eth0" ||
		in[0].IPs[0] != netip.MustParsePrefix("10.213.0.2/24") || in[0].MTU != 1500 {
		t.Errorf("interfaces: got %+v", in)
	}
	if a.MAC.String() != "0a:58:0a:d5:00:02" {
		t.Errorf("MAC: got %s", a.MAC)
	}
	serve(t, a.ns, "a", 80)
	serve(t, nil, "node", 81)
	serve(t, out, "out", 82)

	for _, network := range []string{"tcp4", "udp4"} {
		wantAnswer(t, b.ns, network, a.ip()+":80", "a", b.ip())
		wantAnswer(t, a.ns, network, a.ip()+":80", "a", a.ip())
		wantAnswer(t, a.ns, network, "127.0.0.1:80", "a", "127.0.0.1")
		wantAnswer(t, nil, network, a.ip()+":80", "a", "10.213.0.1")
		wantAnswer(t, a.ns, network, "10.213.0.1:81", "node", a.ip())
		wantAnswer(t, a.ns, network, "198.18.0.2:82", "out", "198.18.0.1") // masqueraded
	}
	wantAnswer(t, a.ns, "tcp4", "198.18.0.1:81", "node", a.ip())
	if err := n.Status(); err != nil {
		t.Errorf("status: %v", err)
	}
	if _, err := n.Setup(t.Context(), a.Pod); err != nil { // as after a crash
		t.Errorf("set up again: %v", err)
	}
	wantAnswer(t, b.ns, "tcp4", addresses(t, n)["aaa"].String()+":80", "a", b.ip())
	for range 2 {
		teardown(t, n, a.Pod)
	}
	teardown(t, n, Pod{ID: "never"})
	if got := addresses(t, n); len(got) != 1 || !got["bbb"].IsValid() {
		t.Errorf("addresses: got %v, want that of bbb", got)
	}
}

func TestHostPorts(t *testing.T) {
	out := outside(t)
	n := open(t, testConfig(t, testBridge, testCIDR))
	a := setup(t, n, "aaa",
		PortMapping{HostPort: 8080, ContainerPort: 80}, PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "UDP"},
		PortMapping{HostPort: 8081, ContainerPort: 80, Protocol: "TCP", HostIP: "198.18.0.1"},
		PortMapping{HostPort: 8082, ContainerPort: 80, Protocol: "TCP", HostIP: "0.0.0.0"},
		PortMapping{HostPort: 8083, ContainerPort: 80, Protocol: "TCP", HostIP: "fd00::1"},
		PortMapping{ContainerPort: 7})
	b := setup(t, n, "bbb")
	serve(t, a.ns, "a", 80)
	for _, network := range []string{"tcp4", "udp4"} {
		wantAnswer(t, nil, network, "127.0.0.1:8080", "a", "10.213.0.1")
		wantAnswer(t, nil, network, "198.18.0.1:8080", "a", "198.18.0.1")
		wantAnswer(t, nil, network, "10.213.0.1:8080", "a", "10.213.0.1")
		wantAnswer(t, out, network, "198.18.0.1:8080", "a", "198.18.0.2")
		wantAnswer(t, b.ns, network, "198.18.0.1:8080", "a", "10.213.0.1")
		wantAnswer(t, b.ns, network, "10.213.0.1:8080", "a", "10.213.0.1")
		wantAnswer(t, a.ns, network, "10.213.0.1:8080", "a", "10.213.0.1") // itself
	}
	wantAnswer(t, out, "tcp4", "198.18.0.1:8081", "a", "198.18.0.2")
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8082", "a", "10.213.0.1")
	for _, addr := range []string{"127.0.0.1:8081", "198.18.0.1:8083"} {
		if who, _, err := ask(t, nil, "tcp4", addr); err == nil {
			t.Errorf("ask %s: got %q, want that nobody answers", addr, who)
		}
	}
	if got := hostPorts(t, n); got != 4 {
		t.Errorf("mapped ports: got %d, want 4", got)
	}

	// Another pod cannot have the port, and does not take it away.
	path, err := n.NewNamespace("ccc")
	must(t, err)
	c := Pod{
		ID: "ccc", NetNS: path,
		Ports: []PortMapping{{HostPort: 9090, ContainerPort: 1}, {HostPort: 8080, ContainerPort: 80}},
	}
	if _, err := n.Setup(t.Context(), c); !errors.Is(err, unix.EBUSY) &&
		(err == nil || !strings.Contains(err.Error(), "taken by another pod")) {
		t.Errorf("taken port: got %v", err)
	}
	teardown(t, n, c)
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8080", "a", "10.213.0.1")
	if _, ok := addresses(t, n)["ccc"]; ok || hostPorts(t, n) != 4 {
		t.Error("a failed setup left something")
	}

	// A pod after it gets the port, for clients of the old one too.
	u := udpClient(t, "127.0.0.1:8080")
	u("a 10.213.0.1")
	teardown(t, n, a.Pod)
	d := setup(t, n, "ddd", PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "UDP"})
	serve(t, d.ns, "d", 80)
	u("d 10.213.0.1")                             // the port has moved
	teardown(t, n, Pod{ID: d.ID, NetNS: d.NetNS}) // by somebody who does not know the ports
	if got := hostPorts(t, n); got != 0 {
		t.Errorf("mapped ports: got %d, want none", got)
	}
}

// udpClient keeps its port, so that all it sends is one flow to conntrack. What it returns asks until it has the
// answer.
func udpClient(t *testing.T, addr string) func(want string) {
	c, err := net.Dial("udp4", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return func(want string) {
		t.Helper()
		eventually(t, "a UDP client does not hear "+want, func() bool {
			buf := make([]byte, 100)
			must(t, c.SetReadDeadline(time.Now().Add(2*time.Second)))
			if _, err := c.Write([]byte("?")); err != nil {
				return false
			}
			n, err := c.Read(buf)
			return err == nil && string(buf[:n]) == want
		})
	}
}

// TestGuard: the way from 127.0.0.1 to the pods is not one for pods to the node's 127.0.0.1.
func TestGuard(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	a := setup(t, n, "aaa", PortMapping{HostPort: 8080, ContainerPort: 80})
	var secret net.Listener
	in(t, nil, func() (err error) {
		secret, err = net.Listen("tcp4", "127.0.0.1:8090")
		return err
	})
	defer secret.Close()
	in(t, a.ns, func() error {
		// What a pod with NET_ADMIN can do.
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(lo, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if err := netlink.AddrDel(lo, &addr); err != nil {
				return err
			}
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0); err != nil {
			return err
		}
		_, local, err := net.ParseCIDR("127.0.0.0/8")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: local, Gw: net.ParseIP("10.213.0.1")})
	})
	if _, _, err := ask(t, a.ns, "tcp4", "127.0.0.1:8090"); err == nil {
		t.Error("a pod reached a service on the node's loopback address")
	}
}

func TestManyAtOnce(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	pods := make([]Pod, 100)
	results := make([]Result, len(pods))
	each := func(f func(i int) error) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range pods {
			wg.Go(func() {
				if err := f(i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) (err error) {
		p := Pod{ID: fmt.Sprintf("pod%03d", i), Ports: []PortMapping{{HostPort: int32(10000 + i), ContainerPort: 80}}}
		if p.NetNS, err = n.NewNamespace(p.ID); err == nil {
			results[i], err = n.Setup(t.Context(), p)
		}
		pods[i] = p
		return err
	})
	seen := map[netip.Addr]bool{}
	for _, r := range results {
		if len(r.IPs) == 1 {
			seen[r.IPs[0]] = true
		}
	}
	if len(seen) != len(pods) || len(veths(t, testBridge)) != len(pods) || hostPorts(t, n) != len(pods) {
		t.Errorf("got %d addresses, %d veth pairs, %d ports; want %d", len(seen), len(veths(t, testBridge)),
			hostPorts(t, n), len(pods))
	}
	ns, err := os.Open(pods[42].NetNS)
	must(t, err)
	serve(t, ns, "p", 80)
	wantAnswer(t, nil, "tcp4", "127.0.0.1:10042", "p", "10.213.0.1")
	must(t, ns.Close())
	each(func(i int) error {
		return errors.Join(n.Teardown(context.Background(), pods[i]), n.RemoveNamespace(pods[i].ID))
	})
	if len(addresses(t, n)) != 0 || hostPorts(t, n) != 0 {
		t.Errorf("got %v, %d ports, want none", addresses(t, n), hostPorts(t, n))
	}
}

// TestCrash ends the agent after each step of a setup.
func TestCrash(t *testing.T) {
	steps := []struct {
		name string
		do   func(t *testing.T, n *Network, p Pod)
	}{
		{"file of the namespace", func(t *testing.T, n *Network, p Pod) {
			must(t, os.WriteFile(filepath.Join(n.conf.NetNSDir, p.ID), nil, 0o444))
		}},
		{"namespace", func(t *testing.T, n *Network, p Pod) {
			must(t, n.pins.remove(p.ID))
			_, err := n.NewNamespace(p.ID)
			must(t, err)
		}},
		{"address", func(t *testing.T, n *Network, p Pod) {
			pool, err := n.own.pool()
			must(t, err)
			_, err = pool.add(owner(p.ID, podInterface))
			must(t, err)
		}},
		{"veth pair", func(t *testing.T, n *Network, p Pod) {
			ns, err := os.Open(p.NetNS)
			must(t, err)
			defer ns.Close()
			_, err = n.own.builtin.bridge.connect(n.own.conf, skelArgs(p), netip.MustParsePrefix("10.213.0.1/24"), ns,
				macOf(netip.MustParseAddr("10.213.0.2")))
			must(t, err)
		}},
		{"address in the pod", func(t *testing.T, n *Network, p Pod) {
			ns, err := os.Open(p.NetNS)
			must(t, err)
			defer ns.Close()
			must(t, n.own.builtin.links.configure(ns, podInterface, 1500, podIP{
				addr: netip.MustParsePrefix("10.213.0.2/24"), gateway: netip.MustParseAddr("10.213.0.1"),
				routes: defaultRoute(netip.MustParseAddr("10.213.0.1")),
			}))
		}},
		{"port", func(t *testing.T, n *Network, p Pod) {
			tab := table{bridge: testBridge, subnet: testCIDR, masq: true}
			must(t, n.own.builtin.portMap.mapPorts(tab, p.ID,
				[]port{{proto: unix.IPPROTO_TCP, host: 8080, podPort: 80, pod: netip.MustParseAddr("10.213.0.2")}}))
		}},
		{"result", func(t *testing.T, n *Network, p Pod) {
			_, err := n.Setup(t.Context(), p)
			must(t, err)
		}},
	}
	for i, last := range steps {
		for _, after := range []string{"collect", "set up again", "tear down"} {
			t.Run("after "+last.name+": "+after, func(t *testing.T) {
				c := testConfig(t, testBridge, testCIDR)
				open(t, c)
				n := reopen(t, c)
				p := Pod{
					ID: "aaa", NetNS: filepath.Join(c.NetNSDir, "aaa"),
					Ports: []PortMapping{{HostPort: 8080, ContainerPort: 80}},
				}
				for _, s := range steps[:i+1] {
					s.do(t, n, p)
				}
				n = reopen(t, c)
				other := setup(t, n, "other", PortMapping{HostPort: 9090, ContainerPort: 80})
				serve(t, other.ns, "other", 80)
				switch after {
				case "collect":
					must(t, n.Collect(t.Context(), []string{"other"}))
				case "tear down":
					teardown(t, n, p)
				case "set up again":
					again := setup(t, n, "aaa", p.Ports...)
					stop := serve(t, again.ns, "a", 80)
					wantAnswer(t, nil, "tcp4", "127.0.0.1:8080", "a", "10.213.0.1")
					wantAnswer(t, other.ns, "tcp4", again.ip()+":80", "a", other.ip())
					teardown(t, n, again.Pod)
					stop()
					must(t, again.ns.Close())
				}
				wantAnswer(t, nil, "tcp4", "127.0.0.1:9090", "other", "10.213.0.1")
				eventually(t, "a veth pair is left", func() bool { return len(veths(t, testBridge)) == 1 })
				ids, err := n.pins.list()
				must(t, err)
				if len(ids) != 1 || len(addresses(t, n)) != 1 || hostPorts(t, n) != 1 {
					t.Errorf("left: namespaces %v, addresses %v, %d ports; want those of other", ids, addresses(t, n),
						hostPorts(t, n))
				}
			})
		}
	}
}

// TestVethOfLostNamespace: a process keeps the namespace, nothing else knows of it.
func TestVethOfLostNamespace(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	a, b := setup(t, n, "aaa"), setup(t, n, "bbb") // their ns stay open
	must(t, n.RemoveNamespace("aaa"))
	must(t, n.Teardown(t.Context(), Pod{ID: "aaa", NetNS: a.NetNS}))
	n.own.builtin.bridge.later.Wait()
	if got := veths(t, testBridge); len(got) != 1 {
		t.Errorf("veth pairs: got %v, want that of bbb", got)
	}
	n = reopen(t, c)
	must(t, n.Collect(t.Context(), nil))
	if got := veths(t, testBridge); len(got) != 0 {
		t.Errorf("veth pairs: got %v, want none", got)
	}
	_ = b
}

// TestTornDownPodIsSilent: its address can be another pod's at once, though its namespace still exists.
func TestTornDownPodIsSilent(t *testing.T) {
	n := open(t, testConfig(t, testBridge, netip.MustParsePrefix("10.213.0.0/30"))) // one address
	a := setup(t, n, "aaa")
	serve(t, a.ns, "a", 80)
	wantAnswer(t, nil, "tcp4", "10.213.0.2:80", "a", "10.213.0.1")
	path, err := n.NewNamespace("bbb")
	must(t, err)
	if _, err := n.Setup(t.Context(), Pod{ID: "bbb", NetNS: path}); err == nil ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("full network: got %v", err)
	}
	must(t, n.Teardown(t.Context(), a.Pod))
	b := setup(t, n, "bbb")
	serve(t, b.ns, "b", 80)
	for range 20 {
		wantAnswer(t, nil, "tcp4", "10.213.0.2:80", "b", "10.213.0.1")
	}
}

func TestTwoNetworks(t *testing.T) {
	c1, c2 := testConfig(t, testBridge, testCIDR), testConfig(t, "btst1", netip.MustParsePrefix("10.214.0.0/24"))
	n1, n2 := open(t, c1), open(t, c2)
	a, b := setup(t, n1, "same", PortMapping{HostPort: 8080, ContainerPort: 80}), setup(t, n2, "same", PortMapping{
		HostPort: 8081, ContainerPort: 80,
	})
	serve(t, a.ns, "a", 80)
	serve(t, b.ns, "b", 80)
	check := func() {
		t.Helper()
		wantAnswer(t, nil, "tcp4", "127.0.0.1:8081", "b", "10.214.0.1")
		wantAnswer(t, nil, "tcp4", b.ip()+":80", "b", "10.214.0.1")
	}
	check()
	wantAnswer(t, a.ns, "tcp4", b.ip()+":80", "b", "10.214.0.1")
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8080", "a", "10.213.0.1")
	must(t, reopen(t, c1).Collect(t.Context(), nil))
	check()
	must(t, n1.Purge(t.Context()))
	check()
}

// TestFlushedRules: `nft flush ruleset`, as firewalls do when they start.
func TestFlushedRules(t *testing.T) {
	out := outside(t)
	n := open(t, testConfig(t, testBridge, testCIDR))
	a := setup(t, n, "aaa", PortMapping{HostPort: 8080, ContainerPort: 80})
	serve(t, a.ns, "a", 80)
	serve(t, out, "out", 82)
	must(t, removeTable(n.own.builtin.nft, table{bridge: testBridge}.table()))
	setup(t, n, "bbb")
	wantAnswer(t, a.ns, "tcp4", "198.18.0.2:82", "out", "198.18.0.1")
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8080", "a", "10.213.0.1")
}

// TestHalfRepairedRules: who made the table again was killed before the ports of all pods were in it, and what is known
// of one pod cannot be read.
func TestHalfRepairedRules(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	a := setup(t, n, "aaa", PortMapping{HostPort: 8080, ContainerPort: 80})
	b := setup(t, n, "bbb", PortMapping{HostPort: 8081, ContainerPort: 80}, PortMapping{
		HostPort: 8082, ContainerPort: 82, Protocol: "udp", HostIP: "127.0.0.1",
	})
	serve(t, b.ns, "b", 80)
	must(t, removeTable(n.own.builtin.nft, n.own.table().table()))
	must(t, n.own.table().ensure())
	n = reopen(t, c)
	must(t, n.own.restore())
	if got := hostPorts(t, n); got != 3 {
		t.Errorf("%d host ports are mapped again, want 3", got)
	}
	must(t, n.own.restore()) // which has nothing to do

	result, err := os.ReadFile(n.own.resultPath("aaa"))
	must(t, err)
	write(t, n.own.resultPath("aaa"), strings.ReplaceAll(string(result), "8080", "808080"))
	must(t, removeTable(n.own.builtin.nft, n.own.table().table()))
	setup(t, n, "ccc")
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8081", "b", "10.213.0.1")
	if err := n.own.restore(); err == nil || !strings.Contains(err.Error(), "aaa") {
		t.Errorf("what cannot be restored is told as %v", err)
	}
	if got := hostPorts(t, n); got != 2 {
		t.Errorf("%d host ports are mapped, want 2", got)
	}
	teardown(t, n, a.Pod)
	teardown(t, n, b.Pod)
	if got := hostPorts(t, n); got != 0 {
		t.Errorf("%d host ports are left", got)
	}
}

// TestDeletedBridge: somebody deletes it while pods are there, which no longer have a network; the next one does.
func TestDeletedBridge(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	setup(t, n, "aaa")
	must(t, n.own.builtin.links.delete(testBridge))
	b := setup(t, n, "bbb", PortMapping{HostPort: 8080, ContainerPort: 80})
	serve(t, b.ns, "b", 80)
	wantAnswer(t, nil, "tcp4", "127.0.0.1:8080", "b", "10.213.0.1")
}

func TestForeignBridgeStays(t *testing.T) {
	needRoot(t)
	c := testConfig(t, testBridge, testCIDR)
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: testBridge}}))
	n := reopen(t, c)
	setup(t, n, "aaa")
	must(t, n.Purge(t.Context()))
	l, err := netlink.LinkByName(testBridge)
	must(t, err)
	must(t, netlink.LinkDel(l))
}

// TestHalfMadeBridge: the agent was killed between the making of the bridge and its alias, by which it knows the bridge
// as its own.
func TestHalfMadeBridge(t *testing.T) {
	needRoot(t)
	for _, pods := range []int{0, 1} {
		attrs := netlink.LinkAttrs{Name: testBridge, HardwareAddr: macOf(testCIDR.Masked().Addr().Next())}
		must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		n := open(t, testConfig(t, testBridge, testCIDR))
		for range pods {
			setup(t, n, "aaa")
		}
		must(t, n.Purge(t.Context()))
		if _, err := netlink.LinkByName(testBridge); err == nil {
			t.Errorf("with %d pods: the bridge is left", pods)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"bridge": func(c *Config) { c.BridgeName = "a name that is too long" },
		"cidr":   func(c *Config) { c.PodCIDR = netip.MustParsePrefix("10.0.0.0/31") },
		"cidr 6": func(c *Config) { c.PodCIDR = netip.MustParsePrefix("fd00::/64") },
		"dir":    func(c *Config) { c.StateDir = "" },
	} {
		c := testConfig(t, testBridge, testCIDR)
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkSetup(b *testing.B) {
	n := open(b, testConfig(b, testBridge, netip.MustParsePrefix("10.213.0.0/16")))
	i := 0
	for b.Loop() {
		i++
		b.StopTimer()
		p := Pod{ID: fmt.Sprint("pod", i)}
		var err error
		p.NetNS, err = n.NewNamespace(p.ID)
		must(b, err)
		b.StartTimer()
		_, err = n.Setup(b.Context(), p)
		b.StopTimer()
		must(b, err)
		teardown(b, n, p)
		b.StartTimer()
	}
}

func BenchmarkTeardown(b *testing.B) {
	n := open(b, testConfig(b, testBridge, netip.MustParsePrefix("10.213.0.0/16")))
	i := 0
	for b.Loop() {
		i++
		b.StopTimer()
		p := Pod{ID: fmt.Sprint("pod", i)}
		var err error
		p.NetNS, err = n.NewNamespace(p.ID)
		must(b, err)
		_, err = n.Setup(b.Context(), p)
		must(b, err)
		b.StartTimer()
		teardown(b, n, p)
	}
}

func BenchmarkNamespace(b *testing.B) {
	n := open(b, testConfig(b, testBridge, testCIDR))
	i := 0
	for b.Loop() {
		i++
		_, err := n.NewNamespace(fmt.Sprint("pod", i))
		must(b, err)
		b.StopTimer()
		must(b, n.RemoveNamespace(fmt.Sprint("pod", i)))
		b.StartTimer()
	}
}

// BenchmarkKernel is the floor of BenchmarkSetup: only what the kernel does for a pod, by the same requests.
func BenchmarkKernel(b *testing.B) {
	n := open(b, testConfig(b, testBridge, netip.MustParsePrefix("10.213.0.0/16")))
	gateway := netip.MustParsePrefix("10.213.0.1/16")
	ip := podIP{
		addr: netip.MustParsePrefix("10.213.0.2/16"), gateway: gateway.Addr(),
		routes: defaultRoute(gateway.Addr()),
	}
	i := 0
	for b.Loop() {
		i++
		b.StopTimer()
		p := Pod{ID: fmt.Sprint("pod", i)}
		var err error
		p.NetNS, err = n.NewNamespace(p.ID)
		must(b, err)
		ns, err := os.Open(p.NetNS)
		must(b, err)
		b.StartTimer()
		_, err = n.own.builtin.bridge.connect(n.own.conf, skelArgs(p), gateway, ns, macOf(ip.addr.Addr()))
		if err == nil {
			err = n.own.builtin.links.configure(ns, podInterface, 1500, ip)
		}
		b.StopTimer()
		must(b, err)
		must(b, ns.Close())
		teardown(b, n, p)
		b.StartTimer()
	}
}
