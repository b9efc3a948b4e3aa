package cni

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// links are the interfaces of the process's own network namespace.
type links struct {
	socket rtnlPool
	ipv6   bool // the kernel has it
}

// minIPv6 is the smallest MTU of IPv6: an interface with less has none of it, and takes no setting of it either.
const minIPv6 = 1280

func (l *links) hasIPv6(mtu int) bool { return l.ipv6 && mtu >= minIPv6 }

// makePair makes the veth pair of a pod: one end is a port of the bridge whose index master is, the other is born in
// the pod's namespace under its name there.
func (l *links) makePair(bridge, id, peerName string, master, mtu int, ns *os.File, mac net.HardwareAddr) error {
	reqs := vethRequests(bridge, id, peerName, master, mtu, ns, mac, l.hasIPv6(mtu))
	return l.portDone(bridge, id, mtu, l.socket.do(nil, reqs...))
}

// attach puts a pod's port on the bridge whose index master is again.
func (l *links) attach(bridge, id string, master, mtu int) error {
	enslave := linkRequest(0, true)
	enslave.AddData(nameAttr(vethName(bridge, id)))
	enslave.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	return l.portDone(bridge, id, mtu, l.socket.do(nil, enslave, portRequest(bridge, id, l.hasIPv6(mtu))))
}

// settle sets what concerns a pod's port that is on its bridge, and that an earlier version may have made.
func (l *links) settle(bridge, id string, mtu int) error {
	return l.portDone(bridge, id, mtu, l.socket.do(nil, portRequest(bridge, id, l.hasIPv6(mtu))))
}

// portDone ends what was done to a port: while it is on no bridge, as somebody has deleted that, the node receives by
// it what the pod sends.
func (l *links) portDone(bridge, id string, mtu int, err error) error {
	if err == nil && l.hasIPv6(mtu) {
		err = deaf(vethName(bridge, id))
	}
	return err
}

// vethRequests are two, in one system call. The kernel makes a pair up, enslaved and with its peer elsewhere in one
// request, but takes the alias and what concerns a port of a bridge only of a link that is there.
func vethRequests(
	bridge, id, peerName string, master, mtu int, ns *os.File, mac net.HardwareAddr, ipv6 bool,
) []*nl.NetlinkRequest {
	name := vethName(bridge, id)
	add := linkRequest(unix.NLM_F_CREATE|unix.NLM_F_EXCL, true)
	add.AddData(nameAttr(name))
	add.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
	add.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(peerName))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, mac)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns.Fd())))
	add.AddData(info)

	return []*nl.NetlinkRequest{add, portRequest(bridge, id, ipv6)}
}

// What a frame to an address of bridges (IEEE 802.1D, 01:80:c2:00:00:0x) is to its port. The kernel hands most of them
// to the node past the hooks of all bridges, as received by the port itself: a pod could advertise a router there, or
// have the bridge take it for another pod. Those of a port's mask go the way of all others, and so through the filter.
const (
	groupFwdMask   = 31     // IFLA_BRPORT_GROUP_FWD_MASK
	filteredGroups = 0xfffd // all but 01, PAUSE, which the kernel drops
)

// portRequest marks the node's end of a pod's pair, and sets what concerns it as a port of the bridge.
func portRequest(bridge, id string, ipv6 bool) *nl.NetlinkRequest {
	mark := linkRequest(0, false)
	mark.AddData(nameAttr(vethName(bridge, id)))
	mark.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(vethAlias(bridge, id))))
	// Hairpin: with br_netfilter, which other software turns on, a pod's packet through a host port to itself leaves by
	// the port it came in.
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	port := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	port.AddRtAttr(nl.IFLA_BRPORT_MODE, []byte{1})
	port.AddRtAttr(groupFwdMask, nl.Uint16Attr(filteredGroups))
	mark.AddData(info)
	if ipv6 {
		mark.AddData(noLinkLocal())
	}
	return mark
}

// noLinkLocal has an interface make itself no link-local address of IPv6.
func noLinkLocal() *nl.RtAttr {
	family := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	const addrGenMode, none = 8, 1 // IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE
	family.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(addrGenMode, []byte{none})
	return family
}

// deaf has an interface of the network namespace of the calling thread take no default route and no prefix from router
// advertisements. The pods' router is the node, and the node's are elsewhere: whoever advertises on the bridge is none.
func deaf(name string) error {
	// An os.File is registered with the runtime's poller, which takes longer than the rest.
	fd, err := unix.Open("/proc/sys/net/ipv6/conf/"+name+"/accept_ra", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) { // it has no IPv6, or is gone
		return nil
	}
	if err == nil {
		_, err = unix.Write(fd, []byte("0"))
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("have %s take no router advertisements: %w", name, err)
	}
	return nil
}

// configure sets the pod's side: interface up, address, routes. The socket is opened on a thread that visits the
// namespace; the rest needs no thread.
func (l *links) configure(ns *os.File, name string, mtu int, ip podIP) error {
	var r *rtnl
	err := inNetNS(ns, func() (err error) {
		if l.hasIPv6(mtu) {
			if err := deaf(name); err != nil {
				return err
			}
		}
		r, err = openRTNL(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return err
	}
	defer r.close()
	var reqs []*nl.NetlinkRequest
	if l.hasIPv6(mtu) {
		// Without an IPv6 network, a link-local address would only be announced to everybody on the bridge.
		quiet := linkRequest(0, false)
		quiet.AddData(nameAttr(name))
		quiet.AddData(noLinkLocal())
		reqs = append(reqs, quiet)
	}
	for _, link := range []string{"lo", name} {
		up := linkRequest(0, true)
		up.AddData(nameAttr(link))
		reqs = append(reqs, up)
	}
	var index int
	if err := r.do(indexReply(&index), append(reqs, indexRequest(name))...); err != nil {
		return fmt.Errorf("set %s up in the pod: %w", name, err)
	}
	reqs = []*nl.NetlinkRequest{addressRequest(index, ip.addr)}
	for _, route := range ip.routes {
		if q := routeRequest(route.Dst, route.GW, ip.gateway); q != nil {
			reqs = append(reqs, q)
		}
	}
	if err := r.do(nil, reqs...); err != nil {
		return fmt.Errorf("set addresses and routes of %s in the pod: %w", name, err)
	}
	return nil
}

func addressRequest(index int, p netip.Prefix) *nl.NetlinkRequest {
	q := nl.NewNetlinkRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	msg := nl.NewIfAddrmsg(unix.AF_INET)
	msg.Index, msg.Prefixlen = uint32(index), uint8(p.Bits())
	q.AddData(msg)
	addr := p.Addr().AsSlice()
	q.AddData(nl.NewRtAttr(unix.IFA_LOCAL, addr))
	q.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, addr))
	broadcast := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		broadcast[i/8] |= 0x80 >> (i % 8)
	}
	q.AddData(nl.NewRtAttr(unix.IFA_BROADCAST, broadcast[:]))
	return q
}

// routeRequest is nil for a route that is not IPv4.
func routeRequest(dst net.IPNet, via net.IP, gateway netip.Addr) *nl.NetlinkRequest {
	to := dst.IP.To4()
	ones, bits := dst.Mask.Size()
	if to == nil || bits != 32 {
		return nil
	}
	if via = via.To4(); via == nil {
		via = gateway.AsSlice()
	}
	q := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	msg := nl.NewRtMsg()
	msg.Family, msg.Dst_len, msg.Protocol = unix.AF_INET, uint8(ones), unix.RTPROT_STATIC
	q.AddData(msg)
	if ones > 0 {
		q.AddData(nl.NewRtAttr(unix.RTA_DST, to))
	}
	q.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, via))
	return q
}

// silence stops all traffic of a bridge's port and forgets who is behind it; no error when there is no such port.
// Setting its state is not enough: the event that a new link has a carrier comes up to a second late, and enables the
// port again. So it learns nothing, is flooded with nothing, and is locked, which drops what comes in from a sender
// that is not known.
func (l *links) silence(name string) error {
	q := linkRequest(0, false)
	q.AddData(nameAttr(name))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_SLAVE_KIND, nl.NonZeroTerminated("bridge"))
	port := info.AddRtAttr(nl.IFLA_INFO_SLAVE_DATA, nil)
	for _, off := range []int{
		nl.IFLA_BRPORT_STATE, nl.IFLA_BRPORT_LEARNING,
		nl.IFLA_BRPORT_UNICAST_FLOOD, nl.IFLA_BRPORT_MCAST_FLOOD, nl.IFLA_BRPORT_BCAST_FLOOD,
	} {
		port.AddRtAttr(off, []byte{0})
	}
	port.AddRtAttr(nl.IFLA_BRPORT_LOCKED, []byte{1})
	port.AddRtAttr(nl.IFLA_BRPORT_FLUSH, nil)
	q.AddData(info)
	if err := l.socket.do(nil, q); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("silence port %s: %w", name, err)
	}
	return nil
}

func (l *links) has(name string) bool {
	var index int
	return l.socket.do(indexReply(&index), indexRequest(name)) == nil
}

// delete deletes a link and waits for it; no error when there is none.
func (l *links) delete(name string) error {
	q := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	q.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	q.AddData(nameAttr(name))
	if err := l.socket.do(nil, q); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}

// collect deletes the veth pairs of a bridge whose sandboxes are not live, all in one go: put into a group of links,
// they share one grace period, where each by itself would wait 20 ms.
func (l *links) collect(bridge string, live func(id string) bool) error {
	all, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	group := 0xbe000000 | rand.Uint32()>>8
	var move []*nl.NetlinkRequest
	for _, one := range all {
		id, ours := strings.CutPrefix(one.Attrs().Alias, vethAlias(bridge, ""))
		if !ours || one.Type() != "veth" || live(id) {
			continue
		}
		q := linkRequest(0, false)
		q.AddData(nameAttr(one.Attrs().Name))
		q.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
		move = append(move, q)
	}
	if len(move) == 0 {
		return nil
	}
	for _, q := range move {
		// One that went by itself meanwhile is no error.
		if err := l.socket.do(nil, q); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("group interfaces: %w", err)
		}
	}
	q := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	q.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	q.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	if err := l.socket.do(nil, q); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interfaces: %w", err)
	}
	return nil
}
