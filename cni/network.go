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
	"time"

	"github.com/containernetworking/cni/libcni"
	"go.opentelemetry.io/otel/trace"
)

// podInterface is the name of a pod's interface, as every runtime has it.
const podInterface = "eth0"

// Network is the network of all pods of one agent. It is safe for concurrent use, for one sandbox by one caller at a time.
type Network struct {
	conf    Config
	log     *slog.Logger
	pins    *pins
	builtin *builtin
	cni     *libcni.CNIConfig // for foreign networks: what they keep may outlive a boot, so results do
	ownCNI  *libcni.CNIConfig // for the one built in: results are in the state directory
	foreign confDir
	records records

	own      bridgeConf                // the network built in
	plain    *libcni.NetworkConfigList // it as a list, for pods without host ports
	withPort *libcni.NetworkConfigList // and for those with

	repairing sync.Mutex
	unwatch   func() // ends Watch

	mu   sync.Mutex
	mine map[string]struct{} // sandboxes made by this process and not removed yet
}

// New opens the network. It changes nothing of the node but its own directories; the bridge is made for the first pod.
func New(c Config) (*Network, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := validLink(c.BridgeName); err != nil {
		return nil, fmt.Errorf("open network: bridge name: %w", err)
	}
	if _, _, err := usable(c.PodCIDR); err != nil {
		return nil, fmt.Errorf("open network: %w", err)
	}
	for _, d := range []*string{&c.StateDir, &c.NetNSDir, &c.CacheDir} {
		abs, err := filepath.Abs(*d)
		if err != nil || *d == "" {
			return nil, fmt.Errorf("open network: directory %q is not usable: %w", *d, errors.Join(err, os.ErrInvalid))
		}
		*d = abs
	}
	b, err := openBuiltin(c.Log)
	if err != nil {
		return nil, fmt.Errorf("open network: %w", err)
	}
	n := &Network{
		conf: c, log: c.Log, builtin: b,
		cni:     libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, newSeam(b)),
		ownCNI:  libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.StateDir, newSeam(b)),
		foreign: confDir{dir: c.ConfDir, required: c.NeedConf}, records: records{dir: filepath.Join(c.CacheDir, "adds")},
		mine: map[string]struct{}{}, unwatch: func() {},
	}
	b.guests = n.guests
	if err = ownMount(c.StateDir); err == nil {
		n.pins, err = openPins(c.NetNSDir, b.home)
	}
	if err == nil {
		err = n.ownLists()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open network: %w", err), b.close())
	}
	return n, nil
}

// ownLists writes the configuration of the network built in as it could lie in the configuration directory.
func (n *Network) ownLists() error {
	n.own = bridgeConf{
		Type: pluginBridge, Bridge: n.conf.BridgeName, IPMasq: true,
		IPAM: ipamConf{Type: pluginIPAM, Subnet: n.conf.PodCIDR.Masked(), DataDir: filepath.Join(n.conf.StateDir, n.conf.BridgeName)},
	}
	bridge := map[string]any{"type": pluginBridge, "bridge": n.own.Bridge, "ipMasq": true, "ipam": n.own.IPAM}
	ports := map[string]any{
		"type": pluginPortMap, "capabilities": map[string]bool{"portMappings": true},
		"bridge": n.own.Bridge, "subnet": n.own.IPAM.Subnet, "ipMasq": true,
	}
	for _, l := range []struct {
		list    **libcni.NetworkConfigList
		plugins []any
	}{{&n.plain, []any{bridge}}, {&n.withPort, []any{bridge, ports}}} {
		data, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": n.own.Bridge, "plugins": l.plugins})
		if err == nil {
			*l.list, err = libcni.NetworkConfFromBytes(data)
		}
		if err != nil {
			return fmt.Errorf("write the configuration built in: %w", err)
		}
	}
	return nil
}

// Close ends what runs in the background. Pods keep their network.
func (n *Network) Close() error {
	n.unwatch()
	return n.builtin.close()
}

// NewNamespace creates the network namespace of a sandbox, with lo up, and pins it at the path it returns. When it is there
// already, it stays as it is.
func (n *Network) NewNamespace(id string) (path string, err error) {
	n.claim(id)
	defer n.builtin.slot()()
	return n.pins.create(id)
}

// AdoptNamespace is NewNamespace with a namespace that is there, at the path from: one that belongs to a user namespace can be
// made by a process in that only.
func (n *Network) AdoptNamespace(id, from string) (path string, err error) {
	n.claim(id)
	defer n.builtin.slot()()
	return n.pins.adopt(id, from)
}

// RemoveNamespace unpins the namespace of a sandbox. The kernel takes it down, and its veth pair, in its own time.
func (n *Network) RemoveNamespace(id string) error {
	defer n.builtin.slot()()
	if err := n.pins.remove(id); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mine, id)
	return nil
}

func (n *Network) claim(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mine[id] = struct{}{}
}

// Setup connects a sandbox to the network. What an earlier try left, before a crash, is cleared first; what a failed one
// leaves, at once.
func (n *Network) Setup(ctx context.Context, p Pod) (Result, error) {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cni").Start(ctx, "cni add")
	defer span.End()
	began := time.Now()
	n.claim(p.ID)
	if n.begun(p.ID) {
		if err := n.Teardown(ctx, p); err != nil {
			return Result{}, fmt.Errorf("set up network of %s: clear an earlier try: %w", p.ID, err)
		}
	}
	cni := n.cni
	list, err := n.foreign.get()
	if errors.Is(err, errNoConf) {
		cni = n.ownCNI
		p.open = p.Annotations[OpenAnnotation] == "off"
		// Annotations and the cgroup are nothing to it, and would only be written to the record of the result.
		p.Annotations, p.CgroupParent = nil, ""
		list, err = n.ownList(p), n.repair()
	} else if err = errors.Join(err, n.findPlugins(list)); err == nil {
		rt := n.runtimeConf(p)
		err = n.records.put(p.ID, record{Conf: list.Bytes, NetNS: p.NetNS, Args: rt.Args, Capabilities: rt.CapabilityArgs})
	}
	if err != nil {
		return Result{}, fmt.Errorf("set up network of %s: %w", p.ID, err)
	}
	raw, err := cni.AddNetworkList(ctx, list, n.runtimeConf(p))
	var result Result
	if err == nil {
		result, err = convert(raw)
	}
	if err != nil {
		// The caller's context may be what ended the attempt.
		return Result{}, errors.Join(fmt.Errorf("set up network of %s: %w", p.ID, err), n.Teardown(context.WithoutCancel(ctx), p))
	}
	n.log.Debug("sandbox is connected to the network", append(p.attrs(), "network", list.Name, "took", time.Since(began))...)
	return result, nil
}

// ownList is the network built in for a pod.
func (n *Network) ownList(p Pod) *libcni.NetworkConfigList {
	if slices.ContainsFunc(p.Ports, func(m PortMapping) bool { return m.HostPort != 0 }) {
		return n.withPort
	}
	return n.plain
}

// begun says that something of an earlier Setup of the sandbox may be there. It is asked for each pod, so it looks at no more
// than names: a record, libcni's result, an address.
func (n *Network) begun(id string) bool {
	for _, path := range []string{n.records.path(id), n.resultPath(id)} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	p, err := n.builtin.pool(n.own.IPAM)
	if err != nil {
		return false // Setup will say why
	}
	_, ok := p.find(owner(id, podInterface))
	return ok
}

// resultPath is where libcni keeps the result of the network built in.
func (n *Network) resultPath(id string) string {
	return filepath.Join(n.conf.StateDir, "results", n.own.Bridge+"-"+id+"-"+podInterface)
}

func (n *Network) runtimeConf(p Pod) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.NetNS, IfName: podInterface,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", p.Namespace},
			{"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
			{"K8S_POD_UID", p.UID},
		},
		CapabilityArgs: map[string]any{},
	}
	if p.open {
		rt.Args = append(rt.Args, [2]string{openArg, "off"})
	}
	if len(p.Ports) > 0 {
		ports := make([]portMapping, len(p.Ports))
		for i, m := range p.Ports {
			ports[i] = portMapping(m)
		}
		rt.CapabilityArgs["portMappings"] = ports
	}
	if len(p.Annotations) > 0 {
		rt.CapabilityArgs["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	if p.CgroupParent != "" {
		rt.CapabilityArgs["cgroupPath"] = p.CgroupParent
	}
	return rt
}

// Teardown takes a sandbox off the network it was set up with, whatever the configuration is now. It does nothing twice, and
// needs no namespace. The namespace is the caller's to remove.
func (n *Network) Teardown(ctx context.Context, p Pod) error {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cni").Start(ctx, "cni del")
	defer span.End()
	if _, err := os.Lstat(p.NetNS); err != nil {
		p.NetNS = ""
	}
	rec, err := n.records.get(p.ID)
	if err != nil {
		return fmt.Errorf("tear down network: %w", err)
	}
	if rec != nil {
		if err := n.teardownForeign(ctx, p.ID, p.NetNS, rec); err != nil {
			return err
		}
		n.log.Debug("sandbox is taken off the network", p.attrs()...)
		return nil
	}
	// What it had is known to the kernel by its ID; the pod handed in may not say it had ports.
	list := n.plain
	if n.ownList(p) == n.withPort || n.hadPorts(p.ID) {
		list = n.withPort
	}
	rt := n.runtimeConf(p)
	if err := n.ownCNI.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("tear down network of %s: %w", p.ID, err)
	}
	n.log.Debug("sandbox is taken off the network", p.attrs()...)
	return nil
}

// attrs name the pod in the log.
func (p Pod) attrs() []any {
	if p.Name == "" { // nothing more is known of it
		return []any{"sandbox", p.ID}
	}
	return []any{"pod", p.Namespace + "/" + p.Name, "uid", p.UID, "sandbox", p.ID}
}

// hadPorts looks at libcni's record. There is none after a crash within ADD: then Collect removes host ports that are left.
func (n *Network) hadPorts(id string) bool {
	data, err := os.ReadFile(n.resultPath(id))
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

func (n *Network) teardownForeign(ctx context.Context, id, netns string, rec *record) error {
	list, err := rec.list()
	if err == nil {
		rt := &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: podInterface, Args: rec.Args, CapabilityArgs: rec.Capabilities}
		err = n.cni.DelNetworkList(ctx, list, rt)
	}
	if err == nil {
		err = n.records.remove(id)
	}
	if err != nil {
		return fmt.Errorf("tear down network of %s: %w", id, err)
	}
	return nil
}

// Status is nil when pods can be set up, and else says what is wrong with the network configuration.
func (n *Network) Status() error {
	list, err := n.foreign.get()
	if errors.Is(err, errNoConf) {
		return n.repair()
	}
	if err != nil {
		return err
	}
	if err := n.findPlugins(list); err != nil {
		return err
	}
	if err := n.cni.GetStatusNetworkList(context.Background(), list); err != nil {
		return fmt.Errorf("network %s: %w", list.Name, err)
	}
	return nil
}

// findPlugins says which plugin of a network is not there. It is asked before anything is recorded: a chain with a plugin
// missing cannot be undone either.
func (n *Network) findPlugins(list *libcni.NetworkConfigList) error {
	if list == nil {
		return nil
	}
	for _, p := range list.Plugins {
		if _, err := newSeam(n.builtin).FindInPath(p.Network.Type, n.conf.BinDirs); err != nil {
			return fmt.Errorf("network %s: %w", list.Name, err)
		}
	}
	return nil
}
