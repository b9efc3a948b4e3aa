package cni

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// again is how long is waited after a repair before the next: somebody who removes what is made, as soon as it is made, is not to keep
// the node busy.
const again = 100 * time.Millisecond

// source is what the kernel tells of, and which of it matters.
type source struct {
	protocol int
	group    uint
	filter   []unix.SockFilter // leaves out what costs a wake-up for nothing; nil: nothing
	matters  func(kind uint16, data []byte) bool
}

func (n *Network) sources() []source {
	return []source{
		{unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, lostLinks(), n.lostBridge},
		{unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, only(unix.RTM_DELADDR), n.lostAddress},
		{unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES, nil, n.deletedTable},
	}
}

// Watch makes what pods of the network built in need, where it is missing, now and whenever it is missed: the bridge with its address and
// their ports, up, and its tables. The kernel tells when one is removed. It goes on until [Network.Close] or [Network.Purge].
func (n *Network) Watch() error {
	ctx, cancel := context.WithCancel(context.Background())
	missed := make(chan struct{}, 1)
	missed <- struct{}{} // in case something was removed while nobody listened
	var wait sync.WaitGroup
	var open []*os.File
	end := sync.OnceFunc(func() {
		cancel()
		for _, f := range open {
			f.Close()
		}
		wait.Wait()
	})
	for _, s := range n.sources() {
		f, err := s.open()
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			continue // a kernel without nftables
		}
		if err != nil {
			end()
			return fmt.Errorf("watch network: %w", err)
		}
		open = append(open, f)
		wait.Go(func() { listen(f, missed, s.matters) })
	}
	wait.Go(func() { n.restoreAll(ctx, missed) })
	n.unwatch = end
	return nil
}

// restoreAll repairs whenever something is missed, until ctx ends.
func (n *Network) restoreAll(ctx context.Context, missed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-missed:
		}
		if err := n.restore(); err != nil {
			n.log.Warn("network of the pods is not restored", "bridge", n.own.Bridge, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

// restore makes what is missing of what pods need. Without a pod nothing is.
func (n *Network) restore() error {
	pool, err := n.builtin.pool(n.own.IPAM)
	if err != nil || len(pool.all()) == 0 {
		return err
	}
	n.repairing.Lock()
	defer n.repairing.Unlock()
	errs := []error{n.restoreBridge(pool)}
	if err := n.repairTable(); !errors.Is(err, errNoNFT) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, n.restoreFilter())...)
}

// restoreFilter makes the filter if it is missing, or has not been looked at by this process, which may be of a later version.
func (n *Network) restoreFilter() error {
	b := n.builtin
	b.mu.Lock()
	able, made := b.filters[n.own.Bridge]
	b.mu.Unlock()
	if made {
		ok, err := tableExists(&b.nft, filter{n.own.Bridge}.table())
		if ok || !able || err != nil {
			return err
		}
		n.log.Warn("the filter of the pods was removed by somebody and is made again", "bridge", n.own.Bridge)
	}
	return b.ensureFilter(n.own.Bridge)
}

// restoreBridge makes the bridge if it is missing, and has the ports of pods on it that are not: the kernel lets them go with their bridge.
func (n *Network) restoreBridge(pool *pool) error {
	b := n.builtin
	link, err := netlink.LinkByName(n.own.Bridge)
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	if err != nil && !missing {
		return fmt.Errorf("find bridge %s: %w", n.own.Bridge, err)
	}
	gateway := netip.PrefixFrom(pool.gateway, pool.subnet.Bits())
	again := false
	switch {
	case missing:
		again = true
		n.log.Warn("bridge was deleted by somebody and is made again", "bridge", n.own.Bridge)
	case link.Attrs().Index != b.bridge(n.own.Bridge).known():
		again = true
	default:
		lacks, err := n.lacks(link, gateway)
		if err != nil {
			return err
		}
		if again = lacks != ""; again {
			n.log.Warn("bridge was changed by somebody and is put in order again", "bridge", n.own.Bridge, "lacks", lacks)
		}
	}
	index, _, err := b.ensureBridge(n.own, gateway, again)
	if err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		id, ours := strings.CutPrefix(l.Attrs().Alias, vethAlias(n.own.Bridge, ""))
		if !ours || l.Type() != "veth" || l.Attrs().MasterIndex == index {
			continue
		}
		errs = append(errs, n.restorePort(pool, id, index))
	}
	if missing && n.anyPorts() {
		errs = append(errs, b.ensureLocal(n.own.Bridge))
	}
	return errors.Join(errs...)
}

// lacks is what a bridge that is there does not have any more, "" when it has all.
func (n *Network) lacks(link netlink.Link, gateway netip.Prefix) (string, error) {
	if link.Attrs().Flags&net.FlagUp == 0 {
		return "being up", nil
	}
	all, err := netlink.AddrList(link, unix.AF_INET)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return "", fmt.Errorf("list addresses of bridge %s: %w", n.own.Bridge, err)
	}
	for _, a := range all {
		if ones, _ := a.Mask.Size(); a.IP.Equal(gateway.Addr().AsSlice()) && ones == gateway.Bits() {
			return "", nil
		}
	}
	return "address " + gateway.String(), nil
}

// restorePort puts a pod's port on the bridge again. One of a pod that is gone, or goes meanwhile, has no address any more, and is on its
// way out.
func (n *Network) restorePort(pool *pool, id string, bridge int) error {
	if _, ok := pool.find(owner(id, podInterface)); !ok {
		return nil
	}
	name := vethName(n.own.Bridge, id)
	enslave := linkRequest(0, true)
	enslave.AddData(nameAttr(name))
	enslave.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))))
	err := n.builtin.link.do(nil, enslave, portRequest(n.own.Bridge, id, n.builtin.ipv6))
	if _, ok := pool.find(owner(id, podInterface)); !ok {
		return n.builtin.deleteLink(name)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("put port %s on bridge %s: %w", name, n.own.Bridge, err)
	}
	return nil
}

// anyPorts says whether a pod has host ports.
func (n *Network) anyPorts() bool {
	all, err := n.ownCNI.GetCachedAttachments("")
	for _, a := range all {
		if a.Network == n.own.Bridge && a.CapabilityArgs["portMappings"] != nil {
			return true
		}
	}
	return err != nil
}

// known is the index that the bridge was made or found with; 0: not yet.
func (br *bridge) known() int {
	br.mu.Lock()
	defer br.mu.Unlock()
	return br.index
}

// open opens a socket that the kernel tells of what happens in the group.
func (s source) open() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, s.protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if s.filter != nil {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(s.filter)), Filter: &s.filter[0]})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (s.group - 1)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen to the kernel: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// What filters look at, by its offset in a message that comes alone: struct nlmsghdr, and behind it struct ifinfomsg.
const (
	offsetType   = 4
	offsetFamily = unix.NLMSG_HDRLEN
	offsetFlags  = unix.NLMSG_HDRLEN + 8
)

func accept() unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20} }
func ignore() unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} }

// isType jumps over as many instructions as it says where a message is, or is not, of the kind.
func isType(kind uint16, jt, jf uint8) unix.SockFilter {
	// The filter loads 16 bits as the network orders them; the type of a message is in the machine's order.
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], kind)
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(binary.BigEndian.Uint16(b[:])), Jt: jt, Jf: jf}
}

func only(kind uint16) []unix.SockFilter {
	return []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: offsetType}, isType(kind, 0, 1), accept(), ignore()}
}

// lostLinks leaves links that are deleted, and those that are down and not told of as ports of a bridge.
func lostLinks() []unix.SockFilter {
	var up [4]byte
	binary.NativeEndian.PutUint32(up[:], unix.IFF_UP)
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: offsetType},
		isType(unix.RTM_DELLINK, 5, 0),
		isType(unix.RTM_NEWLINK, 0, 5),
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: offsetFamily},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_UNSPEC, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetFlags},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: binary.BigEndian.Uint32(up[:]), Jt: 1},
		accept(),
		ignore(),
	}
}

// listen rings when a message matters, until the file is closed. What was lost, as too much happened at once, may have mattered.
func listen(from *os.File, missed chan<- struct{}, matters func(kind uint16, data []byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		k, err := from.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return
		}
		ring := err != nil
		for b := buf[:max(k, 0)]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				ring = true
				break
			}
			ring = ring || matters(binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:size])
			b = b[min(len(b), (size+3)&^3):]
		}
		if ring {
			select {
			case missed <- struct{}{}:
			default: // it is looked at all the same
			}
		}
	}
}

// lostBridge says that the bridge was deleted, or is down.
func (n *Network) lostBridge(kind uint16, data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg || unix.ByteSliceToString(attr(data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)) != n.own.Bridge {
		return false
	}
	return kind == unix.RTM_DELLINK || kind == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(data[offsetFlags-unix.NLMSG_HDRLEN:])&unix.IFF_UP == 0
}

// lostAddress says that the bridge has lost an address.
func (n *Network) lostAddress(kind uint16, data []byte) bool {
	return kind == unix.RTM_DELADDR && len(data) >= unix.SizeofIfAddrmsg &&
		int(binary.NativeEndian.Uint32(data[4:])) == n.builtin.bridge(n.own.Bridge).known()
}

func (n *Network) deletedTable(kind uint16, data []byte) bool {
	return kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE && len(data) >= 4 &&
		unix.ByteSliceToString(attr(data[4:], unix.NFTA_TABLE_NAME)) == filter{n.own.Bridge}.table().Name
}
