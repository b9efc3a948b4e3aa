// Package csitest is a CSI driver for tests that makes trouble on purpose. It serves the real protocol on a real socket
// and makes real mounts; each of its calls can be delayed, fail before, within or after its effect, lose its
// connection, or end the driver. It holds who calls it to the specification, and what was wrong it keeps as violations.
package csitest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kind is what the volumes of a driver are made of.
type Kind string

// The kinds of volumes. What is in a Tmpfs is gone with its last mount.
const (
	Directory Kind = "directory" // bind mounts of directories of the driver
	Tmpfs     Kind = "tmpfs"
	Loop      Kind = "loop" // ext4 on a loop device over a file; needs mkfs.ext4
)

// Options are what a driver is. Dir is needed; all else has a default.
type Options struct {
	Dir      string // of the driver's own: its volumes, and what it remembers
	Name     string // csitest.berth.node
	Socket   string // of its service; Dir/csi.sock
	Registry string // the plugin registration directory; "": the driver does not register
	NodeID   string // node
	Kind     Kind   // Directory

	Node         []csi.NodeServiceCapability_RPC_Type       // nil: all that it can do
	Controller   []csi.ControllerServiceCapability_RPC_Type // nil: all that it can do
	NoController bool                                       // the socket has no controller service
	Topology     map[string]string
	MaxVolumes   int64
	Capacity     int64 // in bytes, of all volumes; 0: there is no end

	// AnyVolume has the driver take volumes that it has not made, as a handle in a PersistentVolume that an
	// administrator wrote.
	AnyVolume bool
	// Roots are the directories that staging and target paths have to be below; none: anywhere.
	Roots []string
	// Secrets are what each call, such as NodeStageVolume, has to bring. A call that is not named is not checked.
	Secrets map[string]map[string]string
	// SnapshotCalls is how often CreateSnapshot answers that a snapshot is not ready yet.
	SnapshotCalls int
	// ContextBytes is how much the context of each volume has that is of no use.
	ContextBytes int
	// Decide is asked for a fault for each call for which none was injected.
	Decide func(rpc, volume string) *Fault `json:"-"`
	// Respawn starts the driver again when a fault has ended it, as who runs the driver's container would.
	Respawn bool
	// Ended is called instead of ending the service, by a driver that is a process of its own.
	Ended func() `json:"-"`
}

func (o *Options) defaults() {
	set := func(s *string, to string) {
		if *s == "" {
			*s = to
		}
	}
	set(&o.Name, "csitest.berth.node")
	set(&o.Socket, filepath.Join(o.Dir, "csi.sock"))
	set(&o.NodeID, "node")
	set((*string)(&o.Kind), string(Directory))
	if o.Node == nil {
		o.Node = nodeCalls()
	}
	if o.Controller == nil {
		o.Controller = controllerCalls()
	}
}

// Driver is a driver. It lives as long as what is in its directory: a Driver that is opened on the directory of another
// one is the same driver after a restart.
type Driver struct {
	opts   Options
	store  store
	Faults Faults
	ledger *ledger
	judge  judge
	mounts mounts
	lives  sync.Mutex           // held while the service starts or ends, which waits for calls: they must not take it
	life   atomic.Pointer[life] // nil: not served
	exits  chan struct{}
}

// The services of a driver. What they do not have, gRPC answers for them.
type (
	identityService struct {
		csi.UnimplementedIdentityServer
		driver *Driver
	}
	nodeService struct {
		csi.UnimplementedNodeServer
		driver *Driver
	}
	controllerService struct {
		csi.UnimplementedControllerServer
		driver *Driver
	}
	groupService struct {
		csi.UnimplementedGroupControllerServer
		driver *Driver
	}
)

// judge holds calls to the specification, and to what the driver says that it can do.
type judge struct {
	opts   Options
	ledger *ledger
}

// life is the driver from a start to its end.
type life struct {
	server *grpc.Server
	conns  *connections
	served sync.WaitGroup
	end    sync.Once // of a fault that ends it
}

// Open returns the driver of a directory, which is not served before [Driver.Serve].
func Open(o Options) (*Driver, error) {
	o.defaults()
	if err := os.MkdirAll(filepath.Join(o.Dir, "volumes"), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of driver: %w", err)
	}
	l, err := openLedger(o.Dir)
	if err != nil {
		return nil, err
	}
	d := &Driver{opts: o, store: store{dir: o.Dir, kind: o.Kind}, ledger: l, judge: judge{o, l}, exits: make(chan struct{}, 1)}
	d.mounts = mounts{&d.store, l, d.judge}
	return d, nil
}

// Start serves a driver until the end of the test, which then takes away what the driver has mounted, and which fails
// if there was a violation.
func Start(t testing.TB, o Options) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes mounts")
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		if err := d.Reboot(); err != nil {
			t.Error(err)
		}
		for _, v := range d.Violations() {
			t.Errorf("violation of the specification: %s", v)
		}
	})
	return d
}

// Options are those of the driver, with its defaults.
func (d *Driver) Options() Options { return d.opts }

// Serve starts the service, and returns when it can be called.
func (d *Driver) Serve() error {
	d.lives.Lock()
	defer d.lives.Unlock()
	if d.life.Load() != nil {
		return errors.New("start driver: it is served")
	}
	l := &life{conns: &connections{}}
	l.server = grpc.NewServer(grpc.UnaryInterceptor(d.intercept), grpc.StatsHandler(l.conns), grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(l.server, identityService{driver: d})
	csi.RegisterNodeServer(l.server, nodeService{driver: d})
	if !d.opts.NoController {
		csi.RegisterControllerServer(l.server, controllerService{driver: d})
		csi.RegisterGroupControllerServer(l.server, groupService{driver: d})
	}
	sockets := []string{d.opts.Socket}
	if d.opts.Registry != "" {
		registerapi.RegisterRegistrationServer(l.server, &registry{d: d})
		sockets = append(sockets, filepath.Join(d.opts.Registry, d.opts.Name+"-reg.sock"))
	}
	for _, socket := range sockets {
		listener, err := listen(socket)
		if err != nil {
			l.server.Stop()
			return err
		}
		l.served.Go(func() { _ = l.server.Serve(&tracked{listener, l.conns}) }) // ends by Stop only
	}
	d.life.Store(l)
	return nil
}

func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("make directory of socket: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// Stop ends the service, and returns when no call does anything any more. What is mounted stays, as when a driver is
// updated. A driver that is stopped is not started again by itself.
func (d *Driver) Stop() { d.finish(false) }

// Crash ends the service as its death would: who waits for an answer gets none. Calls that have an effect just now have
// it first.
func (d *Driver) Crash() { d.finish(d.opts.Respawn) }

func (d *Driver) finish(again bool) {
	d.lives.Lock()
	l := d.life.Swap(nil)
	if l != nil {
		l.conns.drop()
		l.server.Stop()
		l.served.Wait()
	}
	d.lives.Unlock()
	if l == nil {
		return
	}
	select {
	case d.exits <- struct{}{}:
	default:
	}
	if again {
		_ = d.Serve() // whoever calls the driver next sees that it is not there
	}
}

// Exits has a value after the driver has ended, by a fault or otherwise.
func (d *Driver) Exits() <-chan struct{} { return d.exits }

// exit ends the driver from within a call.
func (d *Driver) exit() {
	if d.opts.Ended != nil {
		d.opts.Ended()
	}
	l := d.life.Load()
	if l == nil { // it ends already
		return
	}
	l.end.Do(func() {
		l.conns.drop()
		go d.Crash() // it waits for the call that this is
	})
}

// drop closes the connections of all callers.
func (d *Driver) drop() {
	if l := d.life.Load(); l != nil {
		l.conns.drop()
	}
}

// connections are those of one life.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
	ends []context.CancelFunc // of the calls that come by them
}

func (c *connections) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, conn)
}

// drop ends the calls first: a server hears that a connection is closed when its reader next runs, and its callers may
// have called again by then.
func (c *connections) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.ends {
		end()
	}
	for _, conn := range c.open {
		_ = conn.Close()
	}
	c.open, c.ends = nil, nil
}

// TagConn implements [stats.Handler].
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	ctx, end := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, end)
	return ctx
}

// TagRPC implements [stats.Handler].
func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements [stats.Handler].
func (c *connections) HandleRPC(context.Context, stats.RPCStats) {}

// HandleConn implements [stats.Handler].
func (c *connections) HandleConn(context.Context, stats.ConnStats) {}

// tracked is a listener whose connections can be closed.
type tracked struct {
	net.Listener
	conns *connections
}

// Accept implements [net.Listener].
func (t *tracked) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err == nil {
		t.conns.add(conn)
	}
	return conn, err
}

// Await returns when what the driver knows is as ok wants, which is asked again after each change.
func (d *Driver) Await(ctx context.Context, ok func(State) bool) error {
	for {
		changed := d.ledger.changes()
		if ok(d.State()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for driver: %w", ctx.Err())
		}
	}
}

// patience is how long a call that seems to be beside another one waits to hear that the caller of that one has gone.
const patience = 5 * time.Second

func (j judge) can(call csi.NodeServiceCapability_RPC_Type) bool {
	return slices.Contains(j.opts.Node, call)
}

func (j judge) controls(call csi.ControllerServiceCapability_RPC_Type) bool {
	return !j.opts.NoController && slices.Contains(j.opts.Controller, call)
}
