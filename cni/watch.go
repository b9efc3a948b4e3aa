package cni

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// Watch makes what pods of the network built in need, where it is missing, now and whenever it is missed: the bridge with their ports,
// and its tables. The kernel tells when one is removed. It goes on until [Network.Close] or [Network.Purge].
func (n *Network) Watch() error {
	links, err := hear(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTM_DELLINK)
	if err != nil {
		return fmt.Errorf("watch network: %w", err)
	}
	tables, err := hear(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES, 0)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		tables, err = nil, nil // a kernel without nftables
	}
	if err != nil {
		links.Close()
		return fmt.Errorf("watch network: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	missed := make(chan struct{}, 1)
	missed <- struct{}{} // in case something was removed while nobody listened
	var wait sync.WaitGroup
	wait.Go(func() { listen(links, missed, n.deletedBridge) })
	if tables != nil {
		wait.Go(func() { listen(tables, missed, n.deletedTable) })
	}
	wait.Go(func() { n.restoreAll(ctx, missed) })
	n.unwatch = sync.OnceFunc(func() {
		cancel()
		links.Close()
		if tables != nil {
			tables.Close()
		}
		wait.Wait()
	})
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
	if missing {
		n.log.Warn("bridge was deleted by somebody and is made again", "bridge", n.own.Bridge)
	}
	index, _, err := b.ensureBridge(n.own, netip.PrefixFrom(pool.gateway, pool.subnet.Bits()), missing || link.Attrs().Index != b.bridge(n.own.Bridge).known())
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

// hear opens a socket that the kernel tells of what happens in a group. Of the messages that come one by one, those of another kind can
// be left out, which costs no wake-up; 0 = all are taken.
func hear(protocol int, group uint, kind uint16) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if kind != 0 {
		// The filter loads 16 bits as the network orders them; the type of a message is in the machine's order.
		var b [2]byte
		binary.NativeEndian.PutUint16(b[:], kind)
		code := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(binary.BigEndian.Uint16(b[:])), Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen to the kernel: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
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

func (n *Network) deletedBridge(kind uint16, data []byte) bool {
	return kind == unix.RTM_DELLINK && len(data) >= unix.SizeofIfInfomsg &&
		unix.ByteSliceToString(attr(data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)) == n.own.Bridge
}

func (n *Network) deletedTable(kind uint16, data []byte) bool {
	return kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE && len(data) >= 4 &&
		unix.ByteSliceToString(attr(data[4:], unix.NFTA_TABLE_NAME)) == filter{n.own.Bridge}.table().Name
}
