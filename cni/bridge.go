package cni

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgeConf is the configuration of berth-bridge.
type bridgeConf struct {
	CNIVersion string   `json:"cniVersion"`
	Name       string   `json:"name"`
	Type       string   `json:"type"`
	Bridge     string   `json:"bridge"`
	MTU        int      `json:"mtu,omitempty"` // 0 = that of the interface with the default route
	IPMasq     bool     `json:"ipMasq"`        // hide pods behind the node where they leave it
	IPAM       ipamConf `json:"ipam"`

	Live []types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
}

func parseBridgeConf(data []byte) (bridgeConf, error) {
	var c bridgeConf
	if err := json.Unmarshal(data, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "read configuration: "+err.Error(), "")
	}
	if err := validLink(c.Bridge); err != nil {
		return c, types.NewError(types.ErrInvalidNetworkConfig, "bridge: "+err.Error(), "")
	}
	if c.MTU < 0 || c.MTU > 1<<16 {
		return c, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("mtu: %d is not possible", c.MTU), "")
	}
	if c.IPAM.Type == pluginIPAM {
		return c, c.IPAM.validate()
	}
	return c, nil
}

// validLink says whether the kernel takes name for an interface.
func validLink(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		return fmt.Errorf("%q cannot be the name of an interface", name)
	}
	return nil
}

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
	return "bth" + hex.EncodeToString(sum[:6])
}

// macOf derives the hardware address of an IP address. An address that is used again keeps it, so that no stale neighbour
// entry leads elsewhere.
func macOf(a netip.Addr) net.HardwareAddr {
	ip := a.As4()
	return net.HardwareAddr{0x0a, 0x58, ip[0], ip[1], ip[2], ip[3]}
}

func (b *builtin) bridge(name string) *bridge {
	b.mu.Lock()
	defer b.mu.Unlock()
	br := b.bridges[name]
	if br == nil {
		br = &bridge{name: name}
		b.bridges[name] = br
	}
	return br
}

// ensureBridge returns index and MTU of the bridge, making it if need be. Again forgets what was known of it.
func (b *builtin) ensureBridge(c bridgeConf, gateway netip.Prefix, again bool) (index, mtu int, err error) {
	br := b.bridge(c.Bridge)
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
	if err == nil && b.ipv6 {
		err = deaf(c.Bridge)
	}
	if err != nil {
		br.index = 0
		return 0, 0, fmt.Errorf("make bridge %s: %w", c.Bridge, err)
	}
	if err := b.ensureForwarding(); err != nil {
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

// halfMade says that a bridge is one of ours whose making was cut off before it got its alias, which the kernel takes only of a
// link that is there already.
func halfMade(link netlink.Link, gateway netip.Addr) bool {
	a := link.Attrs()
	return link.Type() == "bridge" && a.Alias == "" && gateway.IsValid() && bytes.Equal(a.HardwareAddr, macOf(gateway))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// defaultMTU is the MTU of the interface that leads out. The address asked for is one of documentation (RFC 5737), which
// has no route of its own anywhere; nothing is sent.
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
func (b *builtin) ensureForwarding() error {
	const name = "net/ipv4/ip_forward"
	if v, err := sysctl.Sysctl(name); err == nil && v != "0" {
		return nil
	}
	b.log.Info("IP forwarding is off and is set on, for pods to reach other networks", "sysctl", "net.ipv4.ip_forward")
	if _, err := sysctl.Sysctl(name, "1"); err != nil {
		return fmt.Errorf("set IP forwarding on: %w", err)
	}
	return nil
}

// ensureTable makes the nftables table of a bridge, once a process. A kernel without nf_tables costs the node's pods the way
// out, not their start.
func (b *builtin) ensureTable(t table) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.tables[t]; ok {
		return nil
	}
	err := t.ensure()
	if errors.Is(err, errNoNFT) {
		b.log.Warn("pods cannot leave the node", "bridge", t.bridge, "error", err)
	} else if err != nil {
		return err
	}
	b.tables[t] = err == nil
	return nil
}

// ensured says that the table was made by this process.
func (b *builtin) ensured(t table) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tables[t]
}

// bridgeAdd connects a pod: address, veth pair, the pod's side.
func (b *builtin) bridgeAdd(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil {
		return nil, err
	}
	ip, err := b.addressFor(ctx, c, a)
	if err != nil {
		return nil, err
	}
	gateway := netip.PrefixFrom(ip.gateway, ip.addr.Bits())
	if c.IPAM.Type == pluginIPAM {
		if err := b.ensureTable(table{bridge: c.Bridge, subnet: ip.addr.Masked(), masq: c.IPMasq}); err != nil {
			return nil, err
		}
	}
	defer b.slot()()
	if err := b.admit(c.Bridge, guest{a.ContainerID, ip.addr.Addr()}, unfiltered(a.Args)); err != nil {
		return nil, err
	}
	ns, err := os.Open(a.Netns)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	mac := macOf(ip.addr.Addr())
	mtu, err := b.connect(c, a, gateway, ns, mac)
	if err != nil {
		return nil, err
	}
	if err := b.configure(ns, a.IfName, ip); err != nil {
		return nil, err
	}
	pod := 1
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: vethName(c.Bridge, a.ContainerID), Mtu: mtu},
			{Name: a.IfName, Mac: mac.String(), Mtu: mtu, Sandbox: a.Netns},
		},
		IPs:    []*types100.IPConfig{{Interface: &pod, Address: *ipNet(ip.addr), Gateway: ip.gateway.AsSlice()}},
		Routes: ip.routes,
		DNS:    ip.dns,
	}
	return result.GetAsVersion(c.CNIVersion)
}

// podIP is what an IPAM plugin gave.
type podIP struct {
	addr    netip.Prefix
	gateway netip.Addr
	routes  []*types.Route
	dns     types.DNS
}

func (b *builtin) addressFor(ctx context.Context, c bridgeConf, a *skel.CmdArgs) (podIP, error) {
	if c.IPAM.Type == pluginIPAM {
		p, err := b.pool(c.IPAM)
		if err != nil {
			return podIP{}, err
		}
		addr, err := p.add(owner(a.ContainerID, a.IfName))
		return podIP{addr: netip.PrefixFrom(addr, p.subnet.Bits()), gateway: p.gateway, routes: defaultRoute(p.gateway)}, err
	}
	path, err := invoke.FindInPath(c.IPAM.Type, filepath.SplitList(a.Path))
	if err != nil {
		return podIP{}, err
	}
	raw, err := invoke.ExecPluginWithResult(ctx, path, a.StdinData, ipamArgs("ADD", a), newSeam(b))
	if err != nil {
		return podIP{}, err
	}
	return ipFromResult(raw)
}

// ipamArgs is the environment of a foreign IPAM plugin: ours, whose own may be that of an agent.
func ipamArgs(command string, a *skel.CmdArgs) *invoke.Args {
	return &invoke.Args{
		Command: command, ContainerID: a.ContainerID, NetNS: a.Netns, PluginArgsStr: a.Args, IfName: a.IfName, Path: a.Path,
	}
}

func defaultRoute(gateway netip.Addr) []*types.Route {
	return []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, GW: gateway.AsSlice()}}
}

// bridgeDel takes a pod off the bridge and frees its address. The veth pair goes with the namespace, which the kernel takes
// down on its own; deleting it here would wait 20 ms for an RCU grace period. Until then its port carries nothing, so that
// the address can be another pod's at once.
func (b *builtin) bridgeDel(ctx context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil {
		return err
	}
	defer b.slot()()
	name := vethName(c.Bridge, a.ContainerID)
	_, nsErr := os.Lstat(a.Netns)
	switch {
	case b.executed:
		err = b.deleteLink(name)
	case a.Netns == "" || nsErr != nil:
		// The namespace is unpinned, and so the pair most likely on its way out; or something else holds on to it.
		if err = b.silence(name); err == nil && b.hasLink(name) {
			b.later.Go(func() {
				if err := b.deleteLink(name); err != nil {
					b.log.Warn("veth pair is left until the next start", "error", err)
				}
			})
		}
	default:
		err = b.silence(name)
	}
	if err == nil {
		err = b.dismiss(c, a)
	}
	if err != nil {
		return err
	}
	if c.IPAM.Type != pluginIPAM {
		path, err := invoke.FindInPath(c.IPAM.Type, filepath.SplitList(a.Path))
		if err != nil {
			return err
		}
		return invoke.ExecPluginWithoutResult(ctx, path, a.StdinData, ipamArgs("DEL", a), newSeam(b))
	}
	p, err := b.pool(c.IPAM)
	if err != nil {
		return err
	}
	return p.release(owner(a.ContainerID, a.IfName))
}

// bridgeCheck says whether the pod's network is as bridgeAdd left it.
func (b *builtin) bridgeCheck(_ context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := previous(a.StdinData)
	if err != nil {
		return err
	}
	if !b.hasLink(vethName(c.Bridge, a.ContainerID)) {
		return fmt.Errorf("check pod: no interface %s on the node", vethName(c.Bridge, a.ContainerID))
	}
	ns, err := os.Open(a.Netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return inNetNS(ns, func() error {
		link, err := netlink.LinkByName(a.IfName)
		if err != nil {
			return fmt.Errorf("check interface %s: %w", a.IfName, err)
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return fmt.Errorf("check addresses of %s: %w", a.IfName, err)
		}
		for _, want := range prev.IPs {
			found := want.Address.IP.To4() == nil
			for _, have := range addrs {
				found = found || have.IP.Equal(want.Address.IP)
			}
			if !found {
				return fmt.Errorf("check addresses of %s: %s is missing", a.IfName, want.Address.IP)
			}
		}
		return nil
	})
}

func (b *builtin) bridgeGC(_ context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, l := range c.Live {
		live[l.ContainerID] = true
	}
	return b.collect(c, func(id string) bool { return live[id] })
}

func (b *builtin) bridgeStatus(_ context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil || c.IPAM.Type != pluginIPAM {
		return err
	}
	p, err := b.pool(c.IPAM)
	if err != nil {
		return err
	}
	_, _, err = b.ensureBridge(c, netip.PrefixFrom(p.gateway, p.subnet.Bits()), true)
	return err
}
