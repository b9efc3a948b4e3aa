package cni

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// wire is a raw socket on an interface of a pod, or on the bridge.
type wire struct {
	t     testing.TB
	fd    int
	index int
}

// tap opens a raw socket, in a pod's namespace or, for nil, the node's.
func tap(t testing.TB, ns *os.File, name string) *wire {
	t.Helper()
	w := &wire{t: t}
	in(t, ns, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		w.index = link.Attrs().Index
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: w.index}) // ETH_P_ALL, big endian
	})
	t.Cleanup(func() { unix.Close(w.fd) })
	must(t, unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}))
	return w
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	must(w.t, unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index}))
}

// until receives frames until one has the mark, which say sends, and returns those that have one of the others. It is
// said again while nothing comes: a new port of a bridge carries nothing until the kernel has noticed that it has a
// carrier.
func (w *wire) until(say func(), mark string, others ...string) (seen []string) {
	w.t.Helper()
	say()
	buf := make([]byte, 2048)
	for silent := 0; ; {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			if silent++; silent > 100 {
				w.t.Fatalf("wait for %q: %v", mark, err)
			}
			say()
			continue
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		text := string(buf[:n])
		if strings.Contains(text, mark) {
			return seen
		}
		for _, o := range others {
			if strings.Contains(text, o) {
				seen = append(seen, o)
			}
		}
	}
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func eth(to, from net.HardwareAddr, kind uint16, payload ...[]byte) []byte {
	b := append(append(append([]byte{}, to...), from...), byte(kind>>8), byte(kind))
	for _, p := range payload {
		b = append(b, p...)
	}
	for len(b) < 60 {
		b = append(b, 0)
	}
	return b
}

// udp4 is a UDP datagram.
func udp4(from, to string, sport, dport uint16, text string) []byte {
	b := make([]byte, 28, 28+len(text))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(text)))
	copy(b[12:], netip.MustParseAddr(from).AsSlice())
	copy(b[16:], netip.MustParseAddr(to).AsSlice())
	binary.BigEndian.PutUint16(b[10:], ^sum(b[:20], 0))
	binary.BigEndian.PutUint16(b[20:], sport)
	binary.BigEndian.PutUint16(b[22:], dport)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(text)))
	return append(b, text...)
}

func sum(b []byte, start uint32) uint16 {
	s := start
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func arp(op byte, mac net.HardwareAddr, ip, target, mark string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, op}
	b = append(append(b, mac...), netip.MustParseAddr(ip).AsSlice()...)
	b = append(append(b, broadcast...), netip.MustParseAddr(target).AsSlice()...)
	return append(b, mark...) // behind the message, where nobody looks
}

// icmp6 is an ICMPv6 message with a hop limit of 255, as neighbour discovery has to have it.
func icmp6(from, to string, message ...byte) []byte {
	b := make([]byte, 40, 40+len(message))
	b[0], b[6], b[7] = 0x60, unix.IPPROTO_ICMPV6, 255
	binary.BigEndian.PutUint16(b[4:], uint16(len(message)))
	copy(b[8:], netip.MustParseAddr(from).AsSlice())
	copy(b[24:], netip.MustParseAddr(to).AsSlice())
	m := append([]byte{}, message...)
	binary.BigEndian.PutUint16(m[2:], ^sum(m, uint32(sum(b[8:40], 0))+uint32(len(m))+unix.IPPROTO_ICMPV6))
	return append(b, m...)
}

// udp6 is a UDP datagram of IPv6. Its checksum is nobody's here.
func udp6(from, to string, sport, dport uint16, text string) []byte {
	b := icmp6(from, to, make([]byte, 8)...)
	b[6] = unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(text)))
	binary.BigEndian.PutUint16(b[40:], sport)
	binary.BigEndian.PutUint16(b[42:], dport)
	binary.BigEndian.PutUint16(b[44:], uint16(8+len(text)))
	return append(b, text...)
}

// advertisement is a router's, of a lifetime of half an hour, with a prefix for addresses.
func advertisement(mac net.HardwareAddr, mark string) []byte {
	m := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	m = append(append(m, 1, 1), mac...)
	m = append(m, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0)
	prefix := netip.MustParseAddr("2001:db8:bad::").As16()
	copy(prefix[10:], mark)
	m = append(m, prefix[:]...)
	return icmp6("fe80::bad", "ff02::1", m...)
}

// TestFilter has a pod with raw sockets try to be somebody else, and looks at the node and at another pod what comes
// through.
func TestFilter(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	a, b := setup(t, n, "aaa"), setup(t, n, "bbb")
	const gateway = "10.213.0.1"
	bridge, err := netlink.LinkByName(testBridge)
	must(t, err)
	node := bridge.Attrs().HardwareAddr
	evil, atNode, atPod := tap(t, a.ns, "eth0"), tap(t, nil, testBridge), tap(t, b.ns, "eth0")

	vlan := func(kind uint16, payload []byte) []byte {
		return append([]byte{0, 0, byte(kind >> 8), byte(kind)}, payload...)
	}
	mark := func(i int) string { return fmt.Sprintf("<<%02d>>", i) }
	na := func(i int) []byte {
		target := netip.MustParseAddr("fe80::").As16()
		copy(target[10:], mark(i))
		m := append([]byte{136, 0, 0, 0, 0xa0, 0, 0, 0}, target[:]...)
		return icmp6(netip.AddrFrom16(target).String(), "ff02::1", append(append(m, 2, 1), a.MAC...)...)
	}
	attacks := []struct {
		name string
		make func(i int) []byte
	}{
		{"router advertisement", func(i int) []byte {
			return eth(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, a.MAC, unix.ETH_P_IPV6, advertisement(a.MAC, mark(i)))
		}},
		{
			"router advertisement to one",
			func(i int) []byte { return eth(b.MAC, a.MAC, unix.ETH_P_IPV6, advertisement(a.MAC, mark(i))) },
		},
		{
			"router advertisement to the node",
			func(i int) []byte { return eth(node, a.MAC, unix.ETH_P_IPV6, advertisement(a.MAC, mark(i))) },
		},
		{"router advertisement, tagged", func(i int) []byte {
			return eth(broadcast, a.MAC, unix.ETH_P_8021Q, vlan(unix.ETH_P_IPV6, advertisement(a.MAC, mark(i))))
		}},
		{"router advertisement, tagged twice", func(i int) []byte {
			return eth(broadcast, a.MAC, unix.ETH_P_8021AD,
				vlan(unix.ETH_P_8021Q, vlan(unix.ETH_P_IPV6, advertisement(a.MAC, mark(i)))))
		}},
		{"neighbour advertisement", func(i int) []byte { return eth(broadcast, a.MAC, unix.ETH_P_IPV6, na(i)) }},
		{"DHCP offer", func(i int) []byte {
			return eth(broadcast, a.MAC, unix.ETH_P_IP, udp4(a.ip(), "255.255.255.255", 67, 68, mark(i)))
		}},
		{"DHCPv6 advertise", func(i int) []byte {
			return eth(broadcast, a.MAC, unix.ETH_P_IPV6, udp6("fe80::bad", "ff02::1", 547, 546, mark(i)))
		}},
		{
			"address of another pod",
			func(i int) []byte { return eth(b.MAC, a.MAC, unix.ETH_P_IP, udp4("10.213.0.9", b.ip(), 9, 9, mark(i))) },
		},
		{
			"address of the gateway",
			func(i int) []byte { return eth(b.MAC, a.MAC, unix.ETH_P_IP, udp4(gateway, b.ip(), 9, 9, mark(i))) },
		},
		{"address of nobody", func(i int) []byte {
			return eth(node, a.MAC, unix.ETH_P_IP, udp4("198.51.100.1", gateway, 9, 9, mark(i)))
		}},
		{"no address", func(i int) []byte {
			return eth(broadcast, a.MAC, unix.ETH_P_IP, udp4("0.0.0.0", "255.255.255.255", 68, 67, mark(i)))
		}},
		{"gratuitous ARP for the gateway", func(i int) []byte {
			return eth(broadcast, a.MAC, unix.ETH_P_ARP, arp(1, a.MAC, gateway, gateway, mark(i)))
		}},
		{
			"ARP answer for the gateway",
			func(i int) []byte { return eth(b.MAC, a.MAC, unix.ETH_P_ARP, arp(2, a.MAC, gateway, b.ip(), mark(i))) },
		},
		{"ARP for another pod", func(i int) []byte {
			return eth(node, a.MAC, unix.ETH_P_ARP,
				arp(2, a.MAC, b.ip(), gateway, mark(i)))
		}},
		{
			"ARP with another sender in it",
			func(i int) []byte { return eth(node, a.MAC, unix.ETH_P_ARP, arp(2, b.MAC, a.ip(), gateway, mark(i))) },
		},
		{"ARP of other sizes", func(i int) []byte {
			m := arp(2, a.MAC, a.ip(), gateway, mark(i))
			m[4] = 8
			return eth(broadcast, a.MAC, unix.ETH_P_ARP, m)
		}},
		{"another protocol", func(i int) []byte { return eth(broadcast, a.MAC, 0x88cc, []byte(mark(i))) }},
		{"sender of another", func(i int) []byte {
			return eth(node, b.MAC, unix.ETH_P_IP,
				udp4(a.ip(), gateway, 9, 9, mark(i)))
		}},
		{"all of another", func(i int) []byte {
			return eth(node, b.MAC, unix.ETH_P_IP,
				udp4(b.ip(), gateway, 9, 9, mark(i)))
		}},
		{"sender is the node", func(i int) []byte {
			return eth(b.MAC, node, unix.ETH_P_IP,
				udp4(a.ip(), b.ip(), 9, 9, mark(i)))
		}},
		{
			"ARP of another sender",
			func(i int) []byte { return eth(node, b.MAC, unix.ETH_P_ARP, arp(2, b.MAC, b.ip(), gateway, mark(i))) },
		},
	}
	var marks []string
	for i := range attacks {
		marks = append(marks, mark(i))
	}
	// What a pod may say comes behind all that it tries: to everybody, and as ARP.
	say := func(mark string) func() {
		return func() {
			evil.send(eth(broadcast, a.MAC, unix.ETH_P_IP, udp4(a.ip(), "10.213.0.255", 9, 9, mark)))
			evil.send(eth(broadcast, a.MAC, unix.ETH_P_ARP, arp(1, a.MAC, a.ip(), gateway, "arp "+mark)))
		}
	}
	atNode.until(say("begin"), "arp begin")
	atPod.until(say("begin"), "arp begin")
	try := func(last string) (atNodeSeen, atPodSeen []string) {
		for i, x := range attacks {
			evil.send(x.make(i))
		}
		say(last)()
		return atNode.until(say(last), "arp "+last, marks...), atPod.until(say(last), "arp "+last, marks...)
	}
	nodeSaw, podSaw := try("end1")
	for i, x := range attacks {
		for _, who := range []struct {
			name string
			seen []string
		}{{"the node", nodeSaw}, {"another pod", podSaw}} {
			for _, m := range who.seen {
				if m == mark(i) {
					t.Errorf("%s: %s got it", x.name, who.name)
				}
			}
		}
	}
	// The bridge has not learned anything of it either.
	serve(t, b.ns, "b", 80)
	wantAnswer(t, a.ns, "tcp4", b.ip()+":80", "b", a.ip())
	wantAnswer(t, nil, "tcp4", b.ip()+":80", "b", gateway)

	// When somebody flushes the ruleset, the next pod's setup has it made again, with those that are there.
	must(t, removeTable(n.own.builtin.nft, filter{testBridge}.table()))
	setup(t, n, "ccc")
	if nodeSaw, podSaw = try("end2"); len(nodeSaw)+len(podSaw) > 0 {
		t.Errorf("after the table was removed: the node saw %q, another pod %q", nodeSaw, podSaw)
	}
	// So does the next process.
	if got := filtered(t, n); got != 3 {
		t.Errorf("%d pods are filtered, want 3", got)
	}
	teardown(t, n, Pod{ID: "ccc"})
	if got := filtered(t, n); got != 2 {
		t.Errorf("%d pods are filtered, want 2", got)
	}
}

func filtered(t testing.TB, n *Network) int {
	t.Helper()
	f := filter{n.own.conf.Bridge}
	var count []int
	for _, s := range []*nftables.Set{f.ports(), f.pods()} {
		all, err := setElements(n.own.builtin.nft, s, nil)
		must(t, err)
		count = append(count, len(all))
	}
	if count[0] != count[1] {
		t.Errorf("%d ports and %d pods are filtered", count[0], count[1])
	}
	return count[0]
}

// TestFilterOff: an annotation takes the filter off a pod, also when the table is made again, by this process or the
// next.
func TestFilterOff(t *testing.T) {
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	b := setup(t, n, "bbb")
	path, err := n.NewNamespace("aaa")
	must(t, err)
	pod := Pod{ID: "aaa", NetNS: path, Annotations: map[string]string{OpenAnnotation: "off"}}
	a, err := n.Setup(t.Context(), pod)
	must(t, err)
	ns, err := os.Open(path)
	must(t, err)
	defer ns.Close()
	open, other := tap(t, ns, "eth0"), tap(t, b.ns, "eth0")
	try := func(mark string) {
		t.Helper()
		end := "end of " + mark // what was said before may still come
		say := func() {
			open.send(eth(broadcast, a.MAC, unix.ETH_P_IP, udp4("198.51.100.1", "10.213.0.255", 9, 9, mark)))
			open.send(eth(broadcast, a.MAC, unix.ETH_P_IP, udp4(a.IPs[0].String(), "10.213.0.255", 67, 9, end)))
		}
		for range 5 { // a new port may carry the second before it carries the first
			if len(other.until(say, end, mark)) > 0 {
				return
			}
		}
		t.Errorf("%s: an open pod is filtered", mark)
	}
	try("first")
	must(t, removeTable(n.own.builtin.nft, filter{testBridge}.table()))
	setup(t, n, "ccc")
	try("again")
	must(t, removeTable(n.own.builtin.nft, filter{testBridge}.table()))
	setup(t, reopen(t, c), "ddd")
	try("next process")
	if got := filtered(t, n); got != 3 {
		t.Errorf("%d pods are filtered, want 3", got)
	}
	teardown(t, n, Pod{ID: "aaa", NetNS: path})
}

// TestRouterAdvertisements: neither the node nor a pod takes a route or an address from one that came through.
func TestRouterAdvertisements(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("needs a kernel with IPv6")
	}
	n := open(t, testConfig(t, testBridge, testCIDR))
	setup(t, n, "first") // makes the bridge
	// Forwarding, which the kernel takes for a sign that the node is a router itself, is off for IPv6.
	a, b := setup(t, n, "aaa"), setup(t, n, "bbb")
	for _, x := range []struct {
		ns   *os.File
		name string
	}{{nil, testBridge}, {a.ns, "eth0"}} {
		in(t, x.ns, func() error {
			if v, err := sysctl.Sysctl("net/ipv6/conf/" + x.name + "/accept_ra"); err != nil || v != "0" {
				t.Errorf("accept_ra of %s is %q, %v", x.name, v, err)
			}
			return nil
		})
	}
	must(t, removeTable(n.own.builtin.nft, filter{testBridge}.table())) // as if the kernel had none
	evil, atNode, atPod := tap(t, a.ns, "eth0"), tap(t, nil, testBridge), tap(t, b.ns, "eth0")
	say := func() {
		evil.send(eth(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, a.MAC, unix.ETH_P_IPV6, advertisement(a.MAC, "prefix")))
		evil.send(eth(broadcast, a.MAC, unix.ETH_P_IP, udp4(a.ip(), "10.213.0.255", 9, 9, "the end")))
	}
	atNode.until(say, "the end")
	atPod.until(say, "the end")
	for _, ns := range []*os.File{nil, b.ns} {
		in(t, ns, func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
			for _, r := range routes {
				if r.Gw != nil || r.Dst != nil && strings.HasPrefix(r.Dst.String(), "2001:db8:bad") {
					t.Errorf("a route was taken: %v", r)
				}
			}
			return err
		})
	}
	// A port of the bridge says nothing by itself.
	port, err := netlink.LinkByName(vethName(testBridge, "bbb"))
	must(t, err)
	if addrs, err := netlink.AddrList(port, netlink.FAMILY_V6); err != nil || len(addrs) > 0 {
		t.Errorf("the port has %v, %v", addrs, err)
	}
}

// TestFramesToTheBridge: what is sent to an address that bridges keep to themselves (IEEE 802.1D, 01:80:c2:00:00:0x)
// is filtered too. The kernel takes most of it to the node past all bridges' hooks, as if the port were no port.
func TestFramesToTheBridge(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	a, b := setup(t, n, "aaa"), setup(t, n, "bbb")
	evil, other, atNode := tap(t, a.ns, "eth0"), tap(t, b.ns, "eth0"), tap(t, nil, testBridge)
	say := func(w *wire, p *testPod, mark string) func() {
		return func() { w.send(eth(broadcast, p.MAC, unix.ETH_P_IP, udp4(p.ip(), "10.213.0.255", 9, 9, mark))) }
	}
	port, err := netlink.LinkByName(vethName(testBridge, "aaa"))
	must(t, err)
	attack := func(end string) {
		atNode.until(say(other, b, "b "+end), "b "+end)
		for last := range byte(16) {
			to := net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, last}
			evil.send(eth(to, a.MAC, unix.ETH_P_IPV6, advertisement(a.MAC, "prefix")))
			evil.send(eth(to, a.MAC, unix.ETH_P_ARP, arp(1, a.MAC, "198.51.100.1", "10.213.0.1", "")))
			evil.send(eth(to, b.MAC, 0x88cc, []byte("this is b")))
		}
		atNode.until(say(evil, a, end), end)

		routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
		must(t, err)
		for _, r := range routes {
			if r.LinkIndex == port.Attrs().Index {
				t.Errorf("%s: the node took a route: %v", end, r)
			}
		}
		neighbours, err := netlink.NeighList(port.Attrs().Index, netlink.FAMILY_V4)
		must(t, err)
		if len(neighbours) > 0 {
			t.Errorf("%s: the node took neighbours: %v", end, neighbours)
		}
		known, err := netlink.NeighList(0, unix.AF_BRIDGE)
		must(t, err)
		for _, f := range known {
			if f.HardwareAddr.String() == b.MAC.String() && f.LinkIndex == port.Attrs().Index {
				t.Errorf("%s: the bridge takes the sender for the other pod: %v", end, f)
			}
		}
	}
	attack("a port that this version made")

	q := linkRequest(0, false)
	q.AddData(nameAttr(port.Attrs().Name))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil).AddRtAttr(groupFwdMask, nl.Uint16Attr(0))
	q.AddData(info)
	must(t, n.own.builtin.links.socket.do(nil, q))
	must(t, reopen(t, n.conf).own.restore())
	attack("a port that an earlier version made")
}

// TestFilterOfMany: a pod is two elements, whatever their number.
func TestFilterOfMany(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	for i := range 20 {
		setup(t, n, fmt.Sprint("pod", i))
	}
	if got := filtered(t, n); got != 20 {
		t.Errorf("%d pods are filtered, want 20", got)
	}
	c, err := nftables.New()
	must(t, err)
	rules, err := c.GetRules(filter{testBridge}.table(), &nftables.Chain{Name: "prerouting"})
	if err != nil || len(rules) != 5 {
		t.Errorf("%d rules, %v", len(rules), err)
	}
	// What ended while nobody saw it is found by its comment.
	must(t, n.Collect(t.Context(), nil))
	if got := filtered(t, n); got != 20 {
		t.Errorf("%d pods of this process are filtered, want 20", got)
	}
	next := reopen(t, n.conf)
	must(t, next.Collect(t.Context(), []string{"pod1", "pod2"}))
	if got := filtered(t, n); got != 2 {
		t.Errorf("%d pods are filtered, want 2", got)
	}
}

// TestFilterOfLargeNode: what an agent restores at its start, and removes after a crash, is one transaction however
// many pods there are. With the usual buffers of a socket the kernel drops its answers from 130 pods on.
func TestFilterOfLargeNode(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	f := filter{testBridge}
	const pods = maxFiltered - 1
	guests := make([]guest, pods)
	addr := netip.MustParseAddr("10.128.0.1")
	for i := range guests {
		guests[i] = guest{fmt.Sprintf("%064d", i), addr}
		addr = addr.Next()
	}
	must(t, f.ensure(guests))
	must(t, f.ensure(guests))
	if got := filtered(t, n); got != pods {
		t.Errorf("%d pods are filtered, want %d", got, pods)
	}
	must(t, f.collect(n.own.builtin.filters.nft, func(id string) bool { return id == guests[7].id }))
	if got := filtered(t, n); got != 1 {
		t.Errorf("%d pods are filtered, want the one that lives", got)
	}
	tab := table{bridge: testBridge, subnet: testCIDR}
	must(t, tab.ensure())
	ports := make([]port, 2000)
	for i := range ports {
		ports[i] = port{proto: unix.IPPROTO_TCP, host: uint16(20000 + i), pod: guests[7].addr, podPort: 80}
	}
	must(t, tab.addPorts("large", ports))
	must(t, tab.removePorts(n.own.builtin.filters.nft, "large", ports))
}

func BenchmarkFilter(b *testing.B) {
	n := open(b, testConfig(b, testBridge, testCIDR))
	setup(b, n, "aaa")
	f := filter{testBridge}
	for b.Loop() {
		g := guest{"bbb", netip.MustParseAddr("10.213.0.9")}
		must(b, f.admit(&n.own.builtin.filters.socket, g))
		must(b, f.dismiss(&n.own.builtin.filters.socket, g))
	}
}
