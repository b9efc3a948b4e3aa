package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containernetworking/cni/libcni"
)

// ownNetwork is the network built in, which is configured as any other of CNI is.
type ownNetwork struct {
	log       *slog.Logger
	builtin   *builtin
	conf      bridgeConf
	cni       *libcni.CNIConfig // whose results are in the state directory
	stateDir  string
	plain     *libcni.NetworkConfigList // for pods without host ports
	withPorts *libcni.NetworkConfigList // and for those with

	repairing sync.Mutex
	ending    sync.RWMutex // held by who ends pods, and alone by who gives back to pods what they have lost
}

func newOwnNetwork(c Config, b *builtin) (*ownNetwork, error) {
	o := &ownNetwork{
		log: c.Log, builtin: b, cni: libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.StateDir, newSeam(b)),
		stateDir: c.StateDir,
		conf: bridgeConf{Type: pluginBridge, Bridge: c.BridgeName, IPMasq: true, IPAM: ipamConf{
			Type: pluginIPAM, Subnet: c.PodCIDR.Masked(), DataDir: filepath.Join(c.StateDir, c.BridgeName),
		}},
	}
	b.filters.guests = o.guests
	return o, o.writeLists()
}

// writeLists writes the configuration as it could lie in the configuration directory.
func (o *ownNetwork) writeLists() error {
	bridge := map[string]any{"type": pluginBridge, "bridge": o.conf.Bridge, "ipMasq": true, "ipam": o.conf.IPAM}
	ports := map[string]any{
		"type": pluginPortMap, "capabilities": map[string]bool{"portMappings": true},
		"bridge": o.conf.Bridge, "subnet": o.conf.IPAM.Subnet, "ipMasq": true,
	}
	for _, l := range []struct {
		list    **libcni.NetworkConfigList
		plugins []any
	}{{&o.plain, []any{bridge}}, {&o.withPorts, []any{bridge, ports}}} {
		data, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": o.conf.Bridge, "plugins": l.plugins})
		if err == nil {
			*l.list, err = libcni.NetworkConfFromBytes(data)
		}
		if err != nil {
			return fmt.Errorf("write the configuration built in: %w", err)
		}
	}
	return nil
}

func (o *ownNetwork) pool() (*pool, error) { return o.builtin.pools.open(o.conf.IPAM) }

func (o *ownNetwork) table() table {
	return table{bridge: o.conf.Bridge, subnet: o.conf.IPAM.Subnet, masq: o.conf.IPMasq}
}

// resultPath is where libcni keeps the result of the network built in.
func (o *ownNetwork) resultPath(id string) string {
	return filepath.Join(o.stateDir, "results", o.conf.Bridge+"-"+id+"-"+podInterface)
}

// begun says that something of an earlier try may be there. It is asked for each pod, so it looks at no more than
// names: libcni's result, an address.
func (o *ownNetwork) begun(id string) bool {
	if _, err := os.Lstat(o.resultPath(id)); err == nil {
		return true
	}
	p, err := o.pool()
	if err != nil {
		return false // who sets the pod up is told why
	}
	_, ok := p.find(owner(id, podInterface))
	return ok
}

// prepare needs no record: all that is made carries the sandbox ID.
func (o *ownNetwork) prepare(p Pod) (attachment, error) {
	p.open = p.Annotations[OpenAnnotation] == "off"
	// Annotations and the cgroup are nothing to it, and would only be written to the record of the result.
	p.Annotations, p.CgroupParent = nil, ""
	list := o.plain
	if hasPorts(p) {
		list = o.withPorts
	}
	return attachment{o.cni, list, p.runtimeConf()}, o.repair()
}

func hasPorts(p Pod) bool {
	return slices.ContainsFunc(p.Ports, func(m PortMapping) bool { return m.HostPort != 0 })
}

// del takes a sandbox off the network. What it had is known to the kernel by its ID; the pod handed in may not say it
// had ports.
func (o *ownNetwork) del(ctx context.Context, p Pod) error {
	list := o.plain
	if hasPorts(p) || o.hadPorts(p.ID) {
		list = o.withPorts
	}
	o.ending.RLock()
	defer o.ending.RUnlock()
	return o.cni.DelNetworkList(ctx, list, p.runtimeConf())
}

// hadPorts looks at libcni's record. There is none after a crash within ADD: then Collect removes host ports that are
// left.
func (o *ownNetwork) hadPorts(id string) bool {
	data, err := os.ReadFile(o.resultPath(id))
	if err != nil {
		return false
	}
	var cached struct {
		Capabilities struct {
			Ports []portMapping `json:"portMappings"`
		} `json:"capabilityArgs"`
	}
	return json.Unmarshal(data, &cached) != nil || len(cached.Capabilities.Ports) > 0
}

// collect removes what sandboxes that are not live have left.
func (o *ownNetwork) collect(live func(id string) bool) error {
	o.ending.RLock()
	defer o.ending.RUnlock()
	return errors.Join(o.builtin.bridge.collect(o.conf, live), o.collectResults(live))
}

// collectResults removes libcni's records of the network built in.
func (o *ownNetwork) collectResults(live func(id string) bool) error {
	all, err := o.cni.GetCachedAttachments("")
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		if a.Network != o.conf.Bridge || live(a.ContainerID) {
			continue
		}
		if err := os.Remove(o.resultPath(a.ContainerID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// purge removes the bridge and the rules.
func (o *ownNetwork) purge() error {
	o.builtin.bridge.later.Wait()
	return o.builtin.bridge.purge(o.conf.Bridge, o.conf.IPAM.Subnet.Masked().Addr().Next())
}

// forget closes the addresses, whose directory is about to go.
func (o *ownNetwork) forget() error { return o.builtin.pools.forget(o.conf.IPAM.DataDir) }

// guests are the pods that the filter of a bridge has to know: all that have an address of the network built in, but
// for those whose annotation says otherwise. libcni's records say which these are.
func (o *ownNetwork) guests(bridge string) []guest {
	if bridge != o.conf.Bridge {
		return nil
	}
	p, err := o.pool()
	if err != nil {
		return nil // whoever sets a pod up is told
	}
	all, err := o.cni.GetCachedAttachments("")
	if err != nil {
		o.log.Warn("pods whose annotation takes the network filter off are not known", "error", err)
	}
	open := o.builtin.filters.opened()
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
