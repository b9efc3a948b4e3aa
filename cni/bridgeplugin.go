package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." ||
		strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		return fmt.Errorf("%q cannot be the name of an interface", name)
	}
	return nil
}

// bridgePlugin is berth-bridge.
type bridgePlugin struct {
	log     *slog.Logger
	links   *links
	pools   *pools
	bridges *bridges
	tables  *tables
	filters *filters
	slots   slots
	execute *executor // of a foreign IPAM plugin

	// executed: one call a process, by a runtime that may not drop the namespace afterwards. So a veth pair is deleted
	// and waited for.
	executed bool
	later    sync.WaitGroup // veths that are deleted in the background
}

// add connects a pod: address, veth pair, the pod's side.
func (b *bridgePlugin) add(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
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
		if err := b.tables.ensure(table{bridge: c.Bridge, subnet: ip.addr.Masked(), masq: c.IPMasq}); err != nil {
			return nil, err
		}
	}
	defer b.slots.take()()
	if err := b.filters.admit(c.Bridge, guest{a.ContainerID, ip.addr.Addr()}, unfiltered(a.Args)); err != nil {
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
	if err := b.links.configure(ns, a.IfName, mtu, ip); err != nil {
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

func (b *bridgePlugin) addressFor(ctx context.Context, c bridgeConf, a *skel.CmdArgs) (podIP, error) {
	if c.IPAM.Type == pluginIPAM {
		p, err := b.pools.open(c.IPAM)
		if err != nil {
			return podIP{}, err
		}
		addr, err := p.add(owner(a.ContainerID, a.IfName))
		return podIP{
			addr: netip.PrefixFrom(addr, p.subnet.Bits()), gateway: p.gateway, routes: defaultRoute(p.gateway),
		}, err
	}
	path, err := invoke.FindInPath(c.IPAM.Type, filepath.SplitList(a.Path))
	if err != nil {
		return podIP{}, err
	}
	raw, err := invoke.ExecPluginWithResult(ctx, path, a.StdinData, ipamArgs("ADD", a), b.execute)
	if err != nil {
		return podIP{}, err
	}
	return ipFromResult(raw)
}

// ipamArgs is the environment of a foreign IPAM plugin: ours, whose own may be that of an agent.
func ipamArgs(command string, a *skel.CmdArgs) *invoke.Args {
	return &invoke.Args{
		Command: command, ContainerID: a.ContainerID, NetNS: a.Netns, PluginArgsStr: a.Args, IfName: a.IfName,
		Path: a.Path,
	}
}

func defaultRoute(gateway netip.Addr) []*types.Route {
	return []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, GW: gateway.AsSlice()}}
}

// del takes a pod off the bridge and frees its address. The veth pair goes with the namespace, which the kernel takes
// down on its own; deleting it here would wait 20 ms for an RCU grace period. Until then its port carries nothing, so
// that the address can be another pod's at once.
func (b *bridgePlugin) del(ctx context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil {
		return err
	}
	defer b.slots.take()()
	name := vethName(c.Bridge, a.ContainerID)
	_, nsErr := os.Lstat(a.Netns)
	switch {
	case b.executed:
		err = b.links.delete(name)
	case a.Netns == "" || nsErr != nil:
		// The namespace is unpinned, and so the pair most likely on its way out; or something else holds on to it.
		if err = b.links.silence(name); err == nil && b.links.has(name) {
			b.later.Go(func() {
				if err := b.links.delete(name); err != nil {
					b.log.Warn("veth pair is left until the next start", "error", err)
				}
			})
		}
	default:
		err = b.links.silence(name)
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
		return invoke.ExecPluginWithoutResult(ctx, path, a.StdinData, ipamArgs("DEL", a), b.execute)
	}
	p, err := b.pools.open(c.IPAM)
	if err != nil {
		return err
	}
	return p.release(owner(a.ContainerID, a.IfName))
}

// check says whether the pod's network is as add left it.
func (b *bridgePlugin) check(_ context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil {
		return err
	}
	prev, err := previous(a.StdinData)
	if err != nil {
		return err
	}
	if !b.links.has(vethName(c.Bridge, a.ContainerID)) {
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
		addrs, err := addressesOf(link, netlink.FAMILY_V4)
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

func (b *bridgePlugin) gc(_ context.Context, a *skel.CmdArgs) error {
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

func (b *bridgePlugin) status(_ context.Context, a *skel.CmdArgs) error {
	c, err := parseBridgeConf(a.StdinData)
	if err != nil || c.IPAM.Type != pluginIPAM {
		return err
	}
	p, err := b.pools.open(c.IPAM)
	if err != nil {
		return err
	}
	_, _, err = b.bridges.ensure(c, netip.PrefixFrom(p.gateway, p.subnet.Bits()), true)
	return err
}

// connect makes the veth pair of a pod: one end on the bridge, the other born in the pod's namespace under its name
// there.
func (b *bridgePlugin) connect(
	c bridgeConf, a *skel.CmdArgs, gateway netip.Prefix, ns *os.File, mac net.HardwareAddr,
) (mtu int, err error) {
	again := false
	for range 3 {
		var master int
		if master, mtu, err = b.bridges.ensure(c, gateway, again); err != nil {
			return 0, err
		}
		err = b.links.makePair(c.Bridge, a.ContainerID, a.IfName, master, mtu, ns, mac)
		switch {
		case err == nil:
			return mtu, nil
		case errors.Is(err, unix.EEXIST):
			// Left by a crash, in this namespace or an older one of the same pod.
			if err := b.links.delete(vethName(c.Bridge, a.ContainerID)); err != nil {
				return 0, err
			}
		default:
			again = true // somebody has deleted the bridge, perhaps
		}
	}
	return 0, fmt.Errorf("make veth pair: %w", err)
}

// dismiss takes a pod whose address is one of ours out of the filter.
func (b *bridgePlugin) dismiss(c bridgeConf, a *skel.CmdArgs) error {
	return b.filters.dismiss(c.Bridge, a.ContainerID, func() (netip.Addr, bool, error) {
		if c.IPAM.Type != pluginIPAM {
			return netip.Addr{}, false, nil
		}
		p, err := b.pools.open(c.IPAM)
		if err != nil {
			return netip.Addr{}, false, err
		}
		addr, ok := p.find(owner(a.ContainerID, a.IfName))
		return addr, ok, nil
	})
}

// collect removes what sandboxes that are not live have left on a bridge.
func (b *bridgePlugin) collect(c bridgeConf, live func(id string) bool) error {
	errs := []error{b.links.collect(c.Bridge, live)}
	if c.IPAM.Type == pluginIPAM {
		p, err := b.pools.open(c.IPAM)
		if err == nil {
			err = p.collect(live)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, b.tables.collect(c.Bridge, live), b.filters.collect(c.Bridge, live))...)
}

// purge deletes the bridge, if it is ours, and its tables.
func (b *bridgePlugin) purge(name string, gateway netip.Addr) error {
	b.bridges.forget(name)
	link, err := netlink.LinkByName(name)
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	switch {
	case missing:
		err = nil
	case err == nil && link.Type() == "bridge" && (link.Attrs().Alias == bridgeAlias(name) || halfMade(link, gateway)):
		err = b.links.delete(name)
	}
	return errors.Join(err, b.tables.purge(name), b.filters.purge(name))
}
