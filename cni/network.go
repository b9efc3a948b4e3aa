package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"go.opentelemetry.io/otel/trace"
)

// podInterface is the name of a pod's interface, as every runtime has it.
const podInterface = "eth0"

// Network is the network of all pods of one agent. It is safe for concurrent use, for one sandbox by one caller at a
// time.
type Network struct {
	conf    Config
	log     *slog.Logger
	pins    *pins
	slots   slots
	own     *ownNetwork
	foreign *foreignNetwork
	unwatch func() // ends Watch

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
	for _, d := range []*string{&c.StateDir, &c.NetNSDir, &c.CacheDir, &c.RecordDir} {
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
	n, err := newNetwork(c, b)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open network: %w", err), b.close())
	}
	return n, nil
}

func newNetwork(c Config, b *builtin) (*Network, error) {
	own, err := newOwnNetwork(c, b)
	if err != nil {
		return nil, err
	}
	if err := ownMount(c.StateDir); err != nil {
		return nil, err
	}
	pins, err := openPins(c.NetNSDir, b.home)
	if err != nil {
		return nil, err
	}
	return &Network{
		conf: c, log: c.Log, pins: pins, slots: b.slots, own: own, foreign: newForeignNetwork(c, b.pools.boot, newSeam(b)),
		mine: map[string]struct{}{}, unwatch: func() {},
	}, nil
}

// Close ends what runs in the background. Pods keep their network.
func (n *Network) Close() error {
	n.unwatch()
	return n.own.builtin.close()
}

// NewNamespace creates the network namespace of a sandbox, with lo up, and pins it at the path it returns. When it is
// there already, it stays as it is.
func (n *Network) NewNamespace(id string) (path string, err error) {
	n.claim(id)
	defer n.slots.take()()
	return n.pins.create(id)
}

// AdoptNamespace is NewNamespace with a namespace that is there, at the path from: one that belongs to a user namespace
// can be made by a process in that only.
func (n *Network) AdoptNamespace(id, from string) (path string, err error) {
	n.claim(id)
	defer n.slots.take()()
	return n.pins.adopt(id, from)
}

// RemoveNamespace unpins the namespace of a sandbox. The kernel takes it down, and its veth pair, in its own time.
func (n *Network) RemoveNamespace(id string) error {
	defer n.slots.take()()
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

// Setup connects a sandbox to the network. What an earlier try left, before a crash, is cleared first; what a failed
// one leaves, at once.
func (n *Network) Setup(ctx context.Context, p Pod) (Result, error) {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cni").Start(ctx, "cni add")
	defer span.End()
	began := time.Now()
	n.claim(p.ID)
	if n.foreign.begun(p.ID) || n.own.begun(p.ID) {
		if err := n.Teardown(ctx, p); err != nil {
			return Result{}, fmt.Errorf("set up network of %s: clear an earlier try: %w", p.ID, err)
		}
	}
	a, err := n.prepare(p)
	if err != nil {
		return Result{}, fmt.Errorf("set up network of %s: %w", p.ID, err)
	}
	raw, err := a.cni.AddNetworkList(ctx, a.list, a.pod)
	var result Result
	if err == nil {
		result, err = convert(raw)
	}
	if err != nil {
		// The caller's context may be what ended the attempt.
		return Result{}, errors.Join(fmt.Errorf("set up network of %s: %w", p.ID, err),
			n.Teardown(context.WithoutCancel(ctx), p))
	}
	n.log.Debug("sandbox is connected to the network",
		append(p.attrs(), "network", a.list.Name, "took", time.Since(began))...)
	return result, nil
}

// attachment is a network, and a pod as that is told of it.
type attachment struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
	pod  *libcni.RuntimeConf
}

// prepare has the network that is configured ready for a pod. It is recorded then, if it has to be.
func (n *Network) prepare(p Pod) (attachment, error) {
	list, err := n.foreign.list()
	if errors.Is(err, errNoConf) {
		return n.own.prepare(p)
	}
	if err != nil {
		return attachment{}, err
	}
	return n.foreign.prepare(list, p)
}

// Teardown takes a sandbox off the network it was set up with, whatever the configuration is now. It does nothing
// twice, and needs no namespace. The namespace is the caller's to remove.
func (n *Network) Teardown(ctx context.Context, p Pod) error {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cni").Start(ctx, "cni del")
	defer span.End()
	if _, err := os.Lstat(p.NetNS); err != nil {
		p.NetNS = ""
	}
	was, err := n.foreign.del(ctx, p)
	if err == nil && !was {
		err = n.own.del(ctx, p)
	}
	if err != nil {
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

// runtimeConf is the pod as plugins are told of it.
func (p Pod) runtimeConf() *libcni.RuntimeConf {
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

// Status is nil when pods can be set up, and else says what is wrong with the network configuration.
func (n *Network) Status() error {
	list, err := n.foreign.list()
	if errors.Is(err, errNoConf) {
		return n.own.repair()
	}
	if err != nil {
		return err
	}
	return n.foreign.status(list)
}

// Watch makes what pods of the network built in need, where it is missing, now and whenever it is missed: the bridge
// with its address and their ports, up, and its tables. The kernel tells when one is removed. It goes on until
// [Network.Close] or [Network.Purge].
func (n *Network) Watch() error {
	end, err := (&watcher{own: n.own, log: n.log}).start()
	if err != nil {
		return fmt.Errorf("watch network: %w", err)
	}
	n.unwatch = end
	return nil
}
