package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// Collect removes what sandboxes that are gone have left: namespaces, veth pairs, addresses, host ports, attachments to a
// foreign network. Sandboxes in live stay, and so do those that this process has made and not removed, since the caller's
// list may be older than they are.
func (n *Network) Collect(ctx context.Context, live []string) error {
	keep := map[string]struct{}{}
	for _, id := range live {
		keep[id] = struct{}{}
	}
	return n.collect(ctx, func(id string) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		_, kept := keep[id]
		_, mine := n.mine[id]
		return kept || mine
	})
}

func (n *Network) collect(ctx context.Context, live func(id string) bool) error {
	var errs []error
	live, err := n.vacateDead(ctx, live)
	errs = append(errs, err)
	// Foreign plugins first, since they may want the namespace.
	ids, err := n.records.ids()
	errs = append(errs, err)
	for _, id := range ids {
		if live(id) {
			continue
		}
		path, _ := n.pins.path(id)
		if err := n.Teardown(ctx, Pod{ID: id, NetNS: path}); err != nil {
			errs = append(errs, err)
		}
	}
	// Then namespaces, of which the kernel takes many down together, with their veth pairs.
	ids, err = n.pins.list()
	errs = append(errs, err)
	for _, id := range ids {
		if !live(id) {
			errs = append(errs, n.pins.remove(id))
		}
	}
	errs = append(errs, n.builtin.collect(n.own, live), n.collectResults(live))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("collect networks: %w", err)
	}
	return nil
}

// vacateDead kills who is left in the namespaces of sandboxes that are gone. One that is not empty afterwards is live like those
// that were told to be: what it has cannot be another's yet.
func (n *Network) vacateDead(ctx context.Context, live func(id string) bool) (func(id string) bool, error) {
	ids, err := n.pins.list()
	errs := []error{err}
	held := map[string]struct{}{}
	for _, id := range ids {
		if live(id) {
			continue
		}
		if err := n.Vacate(ctx, id); err != nil {
			held[id] = struct{}{}
			errs = append(errs, err)
		}
	}
	return func(id string) bool {
		_, is := held[id]
		return is || live(id)
	}, errors.Join(errs...)
}

// collectResults removes libcni's records of the network built in.
func (n *Network) collectResults(live func(id string) bool) error {
	all, err := n.ownCNI.GetCachedAttachments("")
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		if a.Network != n.own.Bridge || live(a.ContainerID) {
			continue
		}
		if err := os.Remove(n.resultPath(a.ContainerID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Purge removes everything: all that sandboxes have, the bridge, the rules, the directories.
func (n *Network) Purge(ctx context.Context) error {
	n.unwatch()
	err := n.collect(ctx, func(string) bool { return false })
	n.builtin.later.Wait()
	errs := []error{
		err,
		n.builtin.purgeBridge(n.own.Bridge, n.own.IPAM.Subnet.Masked().Addr().Next()),
		dropMount(n.conf.NetNSDir),
		n.builtin.closePool(n.own.IPAM.DataDir),
		dropMount(n.conf.StateDir),
		os.RemoveAll(n.records.dir),
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("purge network: %w", err)
	}
	return nil
}

// repair makes the rules of the network built in again if somebody has flushed the whole ruleset, as firewalls do when they
// start, and maps the host ports of all pods anew.
func (n *Network) repair() error {
	n.repairing.Lock()
	defer n.repairing.Unlock()
	if !n.builtin.ensured(n.table()) {
		return nil // the first pod makes them
	}
	return n.repairTable()
}

func (n *Network) table() table {
	return table{bridge: n.own.Bridge, subnet: n.own.IPAM.Subnet, masq: n.own.IPMasq}
}

// repairTable is repair for a node that has pods.
func (n *Network) repairTable() error {
	t := n.table()
	ok, err := t.exists(&n.builtin.nft)
	if err != nil {
		return err
	}
	if ok {
		return n.builtin.ensureTable(t)
	}
	n.log.Warn("nftables rules were removed by somebody and are made again", "bridge", t.bridge)
	if err := t.ensure(); err != nil {
		return err
	}
	all, err := n.ownCNI.GetCachedAttachments("")
	if err != nil {
		return fmt.Errorf("map host ports anew: %w", err)
	}
	pool, err := n.builtin.pool(n.own.IPAM)
	if err != nil {
		return err
	}
	for _, a := range all {
		addr, ok := pool.find(owner(a.ContainerID, a.IfName))
		if a.Network != n.own.Bridge || !ok {
			continue
		}
		var c portMapConf
		data, err := json.Marshal(a.CapabilityArgs["portMappings"])
		if err == nil {
			err = json.Unmarshal(data, &c.Runtime.Ports)
		}
		ports, portErr := c.ports(addr)
		if err = errors.Join(err, portErr); err == nil && len(ports) > 0 {
			err = n.builtin.mapPorts(t, a.ContainerID, ports)
		}
		if err != nil {
			return fmt.Errorf("map host ports of %s anew: %w", a.ContainerID, err)
		}
	}
	return nil
}

// guests are the pods that the filter of a bridge has to know: all that have an address of the network built in, but for those whose
// annotation says otherwise. libcni's records say which these are.
func (n *Network) guests(bridge string) []guest {
	if bridge != n.own.Bridge {
		return nil
	}
	p, err := n.builtin.pool(n.own.IPAM)
	if err != nil {
		return nil // whoever sets a pod up is told
	}
	all, err := n.ownCNI.GetCachedAttachments("")
	if err != nil {
		n.log.Warn("pods whose annotation takes the network filter off are not known", "error", err)
	}
	n.builtin.mu.Lock()
	open := maps.Clone(n.builtin.open)
	n.builtin.mu.Unlock()
	for _, a := range all {
		open[a.ContainerID] = open[a.ContainerID] || slices.Contains(a.CniArgs, [2]string{openArg, "off"})
	}
	var guests []guest
	for who, addr := range p.all() {
		if id, _, ok := parseOwner(who); ok && !open[id] {
			guests = append(guests, guest{id, addr})
		}
	}
	return guests
}
