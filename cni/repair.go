package cni

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/libcni"
)

// repair makes the rules of the network built in again if somebody has flushed the whole ruleset, as firewalls do when
// they start, and maps the host ports of all pods again. It is asked for each pod, of which none is to fail for the
// ports of others.
func (o *ownNetwork) repair() error {
	o.repairing.Lock()
	defer o.repairing.Unlock()
	t := o.table()
	if !o.builtin.tables.ensured(t) {
		return nil // the first pod makes them
	}
	if ok, err := t.exists(o.builtin.nft); ok || err != nil {
		return err
	}
	if err := o.makeTable(t, true); err != nil {
		return err
	}
	if err := o.mapAgain(t); err != nil {
		o.log.Warn("host ports of pods are not mapped again", "bridge", t.bridge, "error", err)
	}
	return nil
}

// repairTable is repair for a node that has pods, and whatever was lost: who made the table again may have been killed
// before the ports of all pods were in it.
func (o *ownNetwork) repairTable() error {
	t := o.table()
	// First: what the first pod is just making was not removed, though the pod has its address.
	made := o.builtin.tables.ensured(t)
	ok, err := t.exists(o.builtin.nft)
	if err != nil {
		return err
	}
	if ok {
		err = o.builtin.tables.ensure(t)
	} else {
		err = o.makeTable(t, made)
	}
	if err != nil {
		return err
	}
	return o.mapAgain(t)
}

func (o *ownNetwork) makeTable(t table, removed bool) error {
	if removed {
		o.log.Warn("nftables rules were removed by somebody and are made again", "bridge", t.bridge)
	}
	return t.ensure()
}

// mapAgain maps the host ports of pods that are not mapped. One pod whose ports cannot be does not keep those of others
// from it.
func (o *ownNetwork) mapAgain(t table) error {
	o.ending.Lock()
	defer o.ending.Unlock()
	all, err := o.cni.GetCachedAttachments("")
	if err != nil {
		return fmt.Errorf("map host ports again: %w", err)
	}
	pool, err := o.pool()
	if err != nil {
		return err
	}
	mapped, err := o.mapped(t)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		addr, ok := pool.find(owner(a.ContainerID, a.IfName))
		if a.Network != o.conf.Bridge || !ok {
			continue
		}
		c, err := portsOf(a)
		var ports, lost []port
		if err == nil {
			ports, err = c.ports(addr)
		}
		for _, p := range ports {
			if mapped[t.mapOf(p).Name+string(p.element("").Key)] != a.ContainerID {
				lost = append(lost, p)
			}
		}
		if err == nil && len(lost) > 0 {
			err = o.builtin.portMap.mapPorts(t, a.ContainerID, lost)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("map host ports of %s again: %w", a.ContainerID, err))
		}
	}
	return errors.Join(errs...)
}

// mapped says which sandbox has which host port, by map and key.
func (o *ownNetwork) mapped(t table) (map[string]string, error) {
	owners := map[string]string{}
	for _, m := range t.maps() {
		elements, err := setElements(o.builtin.nft, m, nil)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			owners[m.Name+string(e.key)] = e.owner
		}
	}
	return owners, nil
}

// portsOf reads the host ports out of libcni's record of a pod.
func portsOf(a *libcni.NetworkAttachment) (c portMapConf, err error) {
	data, err := json.Marshal(a.CapabilityArgs["portMappings"])
	if err == nil {
		err = json.Unmarshal(data, &c.Runtime.Ports)
	}
	return c, err
}
