// Package node is the node as the API server has it: its Node object, registered, kept true and made again when
// somebody has deleted it; the Lease by which the cluster knows that it lives; and the CSINode with its drivers.
//
// What the node is comes as [Facts], and [Build] makes the Node of them: both are values, and nothing of it asks
// anybody. A [Node] gathers the facts when it is told that some have changed, and writes what of the object is not so.
package node

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Object is what the API server has.
type Object interface {
	metav1.Object
	runtime.Object
}

// Client asks the API server. Its errors are those of the server, as k8s.io/apimachinery/pkg/api/errors tells them
// apart. It is called by several goroutines, and gives up when the context ends.
type Client interface {
	Get(ctx context.Context, of schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error
	List(
		ctx context.Context, of schema.GroupVersionResource, namespace string, opts metav1.ListOptions, into runtime.Object,
	) error
	Watch(
		ctx context.Context, of schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) (watch.Interface, error)
	// Create and Update have the answer in into.
	Create(ctx context.Context, of schema.GroupVersionResource, o Object, into runtime.Object) error
	Update(ctx context.Context, of schema.GroupVersionResource, o Object, into runtime.Object) error
	Patch(
		ctx context.Context, of schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
		into runtime.Object, sub ...string,
	) error
}

// Events is where it is told what happens to the node.
type Events interface {
	Node(typ, reason, format string, args ...any)
}

// Config is what a [Node] works with. Client, Identity.Name, Sources and Events are required.
type Config struct {
	Client   Client
	Identity Identity
	Sources  Sources
	Events   Events
	// Register makes the Node where there is none. Without it somebody else does, and what is here waits for that.
	Register bool
	// Limited says that the group of the pods is held to what is allocatable.
	Limited bool

	ReportEvery   time.Duration // how often the Node is written though nothing has changed; 0: five minutes
	LeaseDuration time.Duration // after which the cluster takes the node for gone; 0: 40 s
	MaxImages     int           // that the Node has, the largest first; -1: all

	// Migrated are the plugins of volumes within Kubernetes whose volumes drivers of CSI are asked for.
	Migrated []string
	// Written is told what the API server has whenever that is what this node is; nil: nobody is. No controller
	// detaches a volume that is in use by it.
	Written func(is *corev1.Node)
	// WentBack is told that the API server knows less than it has known: its data is of a backup. Nil: nobody is.
	WentBack func()
	Log      *slog.Logger
}

// Sources is where the facts come from. Each is called again whenever something may have changed, and must be cheap;
// one that is nil has nothing to say, but for Runtime, which is required. Those with a context may wait for somebody
// else, and are not waited for long.
type Sources struct {
	Machine   func() Machine
	Addresses func() []string // those of the node, the main one first
	Resources func() Resources
	Pressure  func() []Pressure
	Runtime   func(context.Context) (Runtime, error)
	Images    func(context.Context) ([]Image, error) // called after [Node.ImagesChanged], and with every report
	Drivers   func() []Driver
	InUse     func() []corev1.UniqueVolumeName
	// NotReady are reasons for which the node takes no pods beside the runtime's, such as that it is being shut down.
	NotReady func() []string
}

// Node keeps the objects of a node.
type Node struct {
	cfg    Config
	log    *slog.Logger
	store  *store
	lease  *lease
	csi    *csiNode
	gather gatherer

	versions versions

	wake    chan struct{} // something may have changed
	images  atomic.Bool   // the images have
	csiMade atomic.Bool   // there is a CSINode
	reports reports
}

// The defaults of kubelet.
const (
	defaultReport = 5 * time.Minute
	defaultLease  = 40 * time.Second
)

// New returns a Node that asks nothing before [Node.Run].
func New(c Config) *Node {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.ReportEvery == 0 {
		c.ReportEvery = defaultReport
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = defaultLease
	}
	n := &Node{cfg: c, log: c.Log, wake: make(chan struct{}, 1)}
	n.images.Store(true)
	n.gather = gatherer{sources: c.Sources, identity: c.Identity, max: c.MaxImages}
	n.store = newStore(c.Client, c.Identity.Name, c.Log)
	n.store.saw = n.saw
	n.lease = &lease{
		client: c.Client, node: c.Identity.Name, duration: c.LeaseDuration, uid: n.UID, log: c.Log,
		wake: make(chan struct{}, 1), saw: n.saw,
	}
	n.csi = &csiNode{
		client: c.Client, node: c.Identity.Name, current: n.Current, drivers: c.Sources.Drivers, migrated: c.Migrated,
		made: n.hasCSINode, wake: make(chan struct{}, 1), log: c.Log,
	}
	n.reports = newReports(c.Log)
	return n
}

// Run keeps the objects until ctx ends. They stay when it has: a node whose agent ends for a while is the same node.
func (n *Node) Run(ctx context.Context) error {
	n.cfg.Events.Node(corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	if n.cfg.Limited {
		n.cfg.Events.Node(corev1.EventTypeNormal, "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods")
	}
	end := n.store.subscribe(n.heard)
	defer end()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() { n.store.run(ctx) })
	wait.Go(func() { n.lease.run(ctx) })
	wait.Go(func() { n.csi.run(ctx) })
	n.report(ctx)
	return nil
}

// heard is told of each change of the object.
func (n *Node) heard(before, now *corev1.Node) {
	tellSchedulable(n.cfg.Events, before, now)
	n.Changed()
	ring(n.csi.wake)
	if uidOf(before) != uidOf(now) {
		ring(n.lease.wake)
	}
}

// Changed says that facts may have changed. It returns at once; many in a short time are one.
func (n *Node) Changed() { ring(n.wake) }

// ImagesChanged is Changed, of images too.
func (n *Node) ImagesChanged() {
	n.images.Store(true)
	ring(n.wake)
}

// DriversChanged is Changed, of the drivers of CSI.
func (n *Node) DriversChanged() {
	ring(n.csi.wake)
	ring(n.wake)
}

func (n *Node) hasCSINode() {
	if !n.csiMade.Swap(true) {
		ring(n.wake)
	}
}

// Current is the Node as the API server has it by what was heard last; nil: there is none, or none was heard of yet.
// It must not be changed.
func (n *Node) Current() *corev1.Node {
	now, _ := n.store.get()
	return now
}

// UID is that of the Node, for who refers to it as the owner of something; "": there is none.
func (n *Node) UID() types.UID { return uidOf(n.Current()) }

// Subscribe has fn called with each change of the Node, nil when it is gone, until end is called. It must not wait.
func (n *Node) Subscribe(fn func(now *corev1.Node)) (end func()) {
	return n.store.subscribe(func(_, now *corev1.Node) { fn(now) })
}

// saw takes a resource version that an object has now.
func (n *Node) saw(of object, version string) {
	if !n.versions.saw(of, version) {
		return
	}
	n.log.Warn("API server knows less than it has known, as after a restore: all of this node is looked at again")
	n.store.again()
	n.csi.forget.Store(true)
	ring(n.csi.wake)
	if n.cfg.WentBack != nil {
		n.cfg.WentBack()
	}
}

func uidOf(n *corev1.Node) types.UID {
	if n == nil {
		return ""
	}
	return n.UID
}

// ring has who listens look, once for all rings before it does.
func ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
