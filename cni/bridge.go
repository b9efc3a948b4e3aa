package cni

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridge is what is known of a bridge that has been made or found.
type bridge struct {
	name string

	mu    sync.Mutex
	index int // 0 = not looked at yet
	mtu   int
	local bool // route_localnet is on
}

// The marks of links: an alias that says whose they are. It is how Collect and Purge tell ours from others'.

func bridgeAlias(bridge string) string   { return "berth/" + bridge }
func vethAlias(bridge, id string) string { return "berth/" + bridge + "/" + id }

// vethName is the node's end of a pod's veth pair.
func vethName(bridge, id string) string {
	sum := sha256.Sum256([]byte(bridge + "/" + id))
	return LinkPrefix + hex.EncodeToString(sum[:6])
}

// macOf derives the hardware address of an IP address. An address that is used again keeps it, so that no stale
// neighbour entry leads elsewhere.
func macOf(a netip.Addr) net.HardwareAddr {
	ip := a.As4()
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

// bridges are those that have been made or found.
type bridges struct {
	log  *slog.Logger
	ipv6 bool // the kernel has it

	mu sync.Mutex
	of map[string]*bridge
}

func (bs *bridges) get(name string) *bridge {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	br := bs.of[name]
	if br == nil {
		br = &bridge{name: name}
		bs.of[name] = br
	}
	return br
}

func (bs *bridges) forget(name string) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	delete(bs.of, name)
}

// ensure returns index and MTU of a bridge, making it if need be. Again forgets what was known of it.
func (bs *bridges) ensure(c bridgeConf, gateway netip.Prefix, again bool) (index, mtu int, err error) {
	br := bs.get(c.Bridge)
	br.mu.Lock()
	defer br.mu.Unlock()
	if br.index != 0 && !again {
		return br.index, br.mtu, nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, 0, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	err = br.ensure(h, c, gateway)
	if err == nil && bs.ipv6 {
		err = deaf(c.Bridge)
	}
	if err != nil {
		br.index = 0
		return 0, 0, fmt.Errorf("make bridge %s: %w", c.Bridge, err)
	}
	if err := bs.ensureForwarding(); err != nil {
		return 0, 0, err
	}
	return br.index, br.mtu, nil
}

func (br *bridge) ensure(h *netlink.Handle, c bridgeConf, gateway netip.Prefix) error {
	mtu := c.MTU
	if mtu == 0 {
		mtu = defaultMTU(h)
	}
	link, err := h.LinkByName(br.name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = br.name, mtu
		if gateway.IsValid() {
			// Else the bridge takes the lowest address of its ports, a new one each time a pod comes or goes, and
			// every pod's neighbour entry of its gateway is wrong for a while.
			attrs.HardwareAddr = macOf(gateway.Addr())
		}
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		link, err = h.LinkByName(br.name)
	}
	if err != nil {
		return err
	}
	if halfMade(link, gateway.Addr()) {
		if err := h.LinkSetAlias(link, bridgeAlias(br.name)); err != nil {
			return fmt.Errorf("set alias: %w", err)
		}
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("there is a %s of that name", link.Type())
	}
	if gateway.IsValid() {
		addr := &netlink.Addr{IPNet: ipNet(gateway)}
		if err := h.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("set address %s: %w", gateway, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	br.index, br.mtu, br.local = link.Attrs().Index, link.Attrs().MTU, false
	return nil
}

// halfMade says that a bridge is one of ours whose making was cut off before it got its alias, which the kernel takes
// only of a link that is there already.
func halfMade(link netlink.Link, gateway netip.Addr) bool {
	a := link.Attrs()
	return link.Type() == "bridge" && a.Alias == "" && gateway.IsValid() && bytes.Equal(a.HardwareAddr, macOf(gateway))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// defaultMTU is the MTU of the interface that leads out. The address asked for is one of documentation (RFC 5737),
// which has no route of its own anywhere; nothing is sent.
func defaultMTU(h *netlink.Handle) int {
	routes, err := h.RouteGet(net.IPv4(198, 51, 100, 1))
	if err == nil && len(routes) > 0 {
		if link, err := h.LinkByIndex(routes[0].LinkIndex); err == nil && link.Attrs().MTU >= 576 {
			return min(link.Attrs().MTU, 65535)
		}
	}
	return 1500
}

// ensureForwarding lets the node route between pods and others. It is a setting of the whole node, so it is said.
func (bs *bridges) ensureForwarding() error {
	const name = Forwarding
	if v, err := sysctl.Sysctl(name); err == nil && v != "0" {
		return nil
	}
	bs.log.Info("IP forwarding is off and is set on, for pods to reach other networks", "sysctl", "net.ipv4.ip_forward")
	if _, err := sysctl.Sysctl(name, "1"); err != nil {
		return fmt.Errorf("set IP forwarding on: %w", err)
	}
	return nil
}

// known is the index that the bridge was made or found with; 0: not yet.
func (br *bridge) known() int {
	br.mu.Lock()
	defer br.mu.Unlock()
	return br.index
}

// reachFromLoopback lets packets from 127.0.0.1 to a host port be routed to the bridge.
func (br *bridge) reachFromLoopback() error {
	br.mu.Lock()
	defer br.mu.Unlock()
	if br.local {
		return nil
	}
	if _, err := sysctl.Sysctl("net/ipv4/conf/"+br.name+"/route_localnet", "1"); err != nil {
		return fmt.Errorf("let host ports be reached from the loopback address: %w", err)
	}
	br.local = true
	return nil
}
