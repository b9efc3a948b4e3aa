package pod

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/spec"
)

// node is what all workers share.
type node struct {
	cfg      Config
	status   Statuses
	traces   *traces
	registry *registry
	tally    *tally

	starting, stopping *gate
	environments       *environment.Maker
	dead               *dead
	reservations       reservations
	resources          resources
	again              chan struct{} // something that a pod may wait for is free
	missed             atomic.Int64  // changes that no event has told of
	adding             sync.Mutex    // held while what was added to a pod is read and written
	addresses          atomic.Pointer[addresses]

	// Set before the first worker begins.
	runtimeName string
	handlers    map[string]*runtimeapi.RuntimeHandlerFeatures // of the runtime, by name

	mountOptions bool // the runtime acts upon options of a container's mounts
}

// askAgain has the pods asked for again that the node had something against.
func (n *node) askAgain() {
	select {
	case n.again <- struct{}{}:
	default:
	}
}

// handlerOf is the runtime handler that a pod's runtime class names; without such an object it is the one of the same
// name.
func (n *node) handlerOf(pod *corev1.Pod) string {
	name := pod.Spec.RuntimeClassName
	if name == nil {
		return ""
	}
	if c, err := n.objects(pod).RuntimeClass(*name); err == nil {
		return c.Handler
	}
	return *name
}

// objects are those that a pod may refer to.
func (n *node) objects(pod *corev1.Pod) *object.Store { return n.cfg.Objects.Of(desired.OriginOf(pod)) }

func (n *node) event(pod *corev1.Pod, typ, reason, format string, args ...any) {
	n.cfg.Events.Event(pod, typ, reason, format, args...)
}

func (n *node) containerEvent(pod *corev1.Pod, container, typ, reason, format string, args ...any) {
	n.cfg.Events.Container(pod, container, typ, reason, format, args...)
}

// addressesFresh is how long the node's addresses are taken for what they are. They are asked for at every step.
const addressesFresh = 10 * time.Second

type addresses struct {
	ips  []string
	read time.Time
}

// nodeIPs are the node's addresses, not older than a moment.
func (n *node) nodeIPs() []string {
	if a := n.addresses.Load(); a != nil && time.Since(a.read) < addressesFresh {
		return a.ips
	}
	a := &addresses{n.cfg.Node.IPs(), time.Now()}
	n.addresses.Store(a)
	return a.ips
}

// uplink has the resolvers that systemd-resolved forwards to. A pod cannot reach the node's loopback, where it listens
// itself.
const uplink = "/run/systemd/resolve/resolv.conf"

// SandboxSpec is the node with its resolvers, which come and go like its addresses.
func (n *node) SandboxSpec() *spec.Node {
	out := n.Spec()
	out.Resolver = n.resolver()
	return out
}

// Spec is what pods are told of the node.
func (n *node) Spec() *spec.Node {
	return &spec.Node{
		Name: n.cfg.Node.Name, IPs: n.nodeIPs(), Memory: n.cfg.Node.Memory, Allocatable: n.cfg.Node.Allocatable,
		Groups: n.cfg.Node.Groups, RootDir: n.cfg.RootDir, LogDir: n.cfg.LogDir,
		SeccompDir: n.cfg.Security.SeccompDir, SeccompDefault: n.cfg.Security.SeccompDefault,
		ClusterDomain: n.cfg.DNS.Domain, ClusterDNS: n.cfg.DNS.Servers,
	}
}

func (n *node) resolver() spec.Resolver {
	r := readResolver(n.cfg.DNS.ResolvConf)
	if !r.OnlyLoopback() {
		return r
	}
	if up := readResolver(uplink); len(up.Servers) > 0 && !up.OnlyLoopback() {
		return up
	}
	return r
}

// readResolver reads what there is. A node without resolvers is one all the same.
func readResolver(path string) spec.Resolver {
	data, err := os.ReadFile(path)
	if err != nil {
		return spec.Resolver{}
	}
	return spec.ParseResolvConf(data)
}
