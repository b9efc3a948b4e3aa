package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// restore makes what is missing of what pods need. Without a pod nothing is.
func (o *ownNetwork) restore() error {
	pool, err := o.pool()
	if err != nil || len(pool.all()) == 0 {
		return err
	}
	o.repairing.Lock()
	defer o.repairing.Unlock()
	errs := []error{o.restoreBridge(pool)}
	if err := o.repairTable(); !errors.Is(err, errNoNFT) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, o.builtin.filters.restore(o.conf.Bridge))...)
}

// restoreBridge makes the bridge if it is missing, and has the ports of pods on it that are not: the kernel lets them
// go with their bridge.
func (o *ownNetwork) restoreBridge(pool *pool) error {
	// First: what is seen of a bridge that is just being made is no change of it.
	known := o.builtin.bridges.get(o.conf.Bridge).known()
	link, err := netlink.LinkByName(o.conf.Bridge)
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	if err != nil && !missing {
		return fmt.Errorf("find bridge %s: %w", o.conf.Bridge, err)
	}
	gateway := netip.PrefixFrom(pool.gateway, pool.subnet.Bits())
	again := false
	switch {
	case missing:
		if again = true; known != 0 { // else it may not have been made yet
			o.log.Warn("bridge was deleted by somebody and is made again", "bridge", o.conf.Bridge)
		}
	case link.Attrs().Index != known:
		again = true
	default:
		lacks, err := o.lacks(link, gateway)
		if err != nil {
			return err
		}
		if again = lacks != ""; again {
			o.log.Warn("bridge was changed by somebody and is put in order again", "bridge", o.conf.Bridge,
				"lacks", lacks)
		}
	}
	index, _, err := o.builtin.bridges.ensure(o.conf, gateway, again)
	if err != nil {
		return err
	}
	links, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		id, ours := strings.CutPrefix(l.Attrs().Alias, vethAlias(o.conf.Bridge, ""))
		switch {
		case !ours || l.Type() != "veth":
		case l.Attrs().MasterIndex != index:
			errs = append(errs, o.restorePort(pool, id, index, l.Attrs().MTU))
		case again:
			if err := o.builtin.links.settle(o.conf.Bridge, id, l.Attrs().MTU); err != nil && !errors.Is(err, unix.ENODEV) {
				errs = append(errs, fmt.Errorf("settle port %s: %w", l.Attrs().Name, err))
			}
		}
	}
	if missing && o.anyPorts() {
		errs = append(errs, o.builtin.bridges.get(o.conf.Bridge).reachFromLoopback())
	}
	return errors.Join(errs...)
}

// lacks is what a bridge that is there does not have any more, "" when it has all.
func (o *ownNetwork) lacks(link netlink.Link, gateway netip.Prefix) (string, error) {
	if link.Attrs().Flags&net.FlagUp == 0 {
		return "being up", nil
	}
	all, err := addressesOf(link, unix.AF_INET)
	if err != nil {
		return "", fmt.Errorf("list addresses of bridge %s: %w", o.conf.Bridge, err)
	}
	for _, a := range all {
		if ones, _ := a.Mask.Size(); a.IP.Equal(gateway.Addr().AsSlice()) && ones == gateway.Bits() {
			return "", nil
		}
	}
	return "address " + gateway.String(), nil
}

// restorePort puts a pod's port on the bridge again. One of a pod that is gone has no address any more, and is on its
// way out.
func (o *ownNetwork) restorePort(pool *pool, id string, bridge, mtu int) error {
	o.ending.Lock()
	defer o.ending.Unlock()
	if _, ok := pool.find(owner(id, podInterface)); !ok {
		return nil
	}
	name := vethName(o.conf.Bridge, id)
	err := o.builtin.links.attach(o.conf.Bridge, id, bridge, mtu)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("put port %s on bridge %s: %w", name, o.conf.Bridge, err)
	}
	return nil
}

// anyPorts says whether a pod has host ports.
func (o *ownNetwork) anyPorts() bool {
	all, err := o.cni.GetCachedAttachments("")
	for _, a := range all {
		if a.Network == o.conf.Bridge && a.CapabilityArgs["portMappings"] != nil {
			return true
		}
	}
	return err != nil
}
