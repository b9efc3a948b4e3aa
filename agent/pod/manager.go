// Package pod runs the pods of this node: it takes the latest desired pods from a channel and makes the runtime, the cgroups and
// the volumes be what they say.
//
// The [Manager] decides which pods there are, and has one worker for each. A worker looks at what the runtime has of its pod,
// lets a pure function plan the next steps, and takes them. Nothing is remembered that can be found again in the runtime, so a
// restart of the agent is no event in a pod's life.
package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/eviction"
)

// Manager has one worker for each pod. Its methods can be called at any time.
type Manager struct {
	node    *node
	log     *slog.Logger
	ended   chan *worker
	wait    sync.WaitGroup
	turns   chan struct{} // a pod that others may wait for has come up or gone down
	stray   chan struct{} // the runtime may have pods that nobody asked for
	strayed chan []*corev1.Pod
	closed  atomic.Bool // no pod may come
	opened  atomic.Bool // somebody has said that pods may come

	// What follows belongs to the goroutine of Run.
	desired  map[types.NamespacedName]*corev1.Pod
	live     map[types.NamespacedName]map[types.UID]*worker
	held     map[types.NamespacedName]status.Waiting // desired pods without a worker, and why
	admitter *admitter
	found    map[types.UID]*corev1.Pod // what is there and nobody has asked for yet
}

// New returns a Manager that does nothing before [Manager.Run].
func New(c Config) (*Manager, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	t, writer := newTraces(), status.NewWriter()
	c.TracerProvider.RegisterSpanProcessor(t)
	m := &Manager{
		node: &node{
			cfg: c, status: writer, registry: newRegistry(writer), traces: t,
			starting: newGate(c.MaxParallelStarts), stopping: newGate(c.MaxParallelStarts), again: make(chan struct{}, 1),
			pool:  &idPool{rootDir: c.RootDir, etc: "/etc"},
			rooms: rooms{granted: map[types.UID]grant{}}, resources: c.Resources,
		},
		log: c.Log, ended: make(chan *worker), turns: make(chan struct{}, 1),
		stray: make(chan struct{}, 1), strayed: make(chan []*corev1.Pod),
		desired: map[types.NamespacedName]*corev1.Pod{}, live: map[types.NamespacedName]map[types.UID]*worker{},
		held: map[types.NamespacedName]status.Waiting{}, found: map[types.UID]*corev1.Pod{},
	}
	m.admitter = newAdmitter(m)
	return m, nil
}

// Active are the pods that the node has taken in and that have not come to their end, with their status once they have one: those whose
// requests count. A pod that was refused, or waits to be taken in, is none of them.
func (m *Manager) Active() []*corev1.Pod {
	all, _ := m.node.registry.pods()
	return slices.DeleteFunc(all, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// Run makes the node run the pods that updates tell of, until ctx ends and everything it started has ended. The pods go on. It
// runs once.
func (m *Manager) Run(ctx context.Context, updates <-chan desired.Update) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.wait.Wait()
	defer m.drain()
	defer cancel()
	if !m.survey(ctx) {
		return nil
	}
	m.wait.Go(func() { m.listen(ctx) })
	m.wait.Go(func() { m.watchStrays(ctx) })
	m.wait.Go(func() { m.node.cfg.Pins.Run(ctx, m.node.cfg.Resync) })
	changes := make(chan resourceChange)
	for _, r := range m.node.resources {
		m.wait.Go(func() { watchResource(ctx, r, changes) })
	}
	m.wait.Go(func() { m.watchTurns(ctx) })
	if m.node.cfg.DiskUse != nil {
		disk := onDisk{m.node}
		limits := eviction.NewLimits(disk, disk, []string{filepath.Join(m.node.cfg.RootDir, "pods"), m.node.cfg.LogDir}, m.log)
		m.wait.Go(func() { limits.Run(ctx) })
	}
	resync := time.NewTicker(m.node.cfg.Resync)
	defer resync.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case u, ok := <-updates:
			if !ok {
				updates = nil // nothing more is wanted or unwanted
				continue
			}
			m.update(ctx, u)
		case w := <-m.ended:
			m.bury(ctx, w)
		case <-m.node.again:
			m.retryHeld(ctx)
		case c := <-changes:
			m.resourceChanged(ctx, c)
		case <-m.turns:
			m.retryHeld(ctx)
		case pods := <-m.strayed:
			m.takeStrays(ctx, pods)
		case <-resync.C:
			m.lookAll()
			m.lookForStrays()
		}
	}
}

// drain waits for the workers, who tell their end even when nobody is interested any more.
func (m *Manager) drain() {
	for _, workers := range m.live {
		for range workers {
			<-m.ended
		}
	}
}

// survey learns what the runtime is and what it has. It tries until it knows, and is false when ctx ends before.
func (m *Manager) survey(ctx context.Context) bool {
	for try := 0; ; try++ {
		err := m.ask(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		m.log.Warn("runtime cannot be used", "error", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(plan.Backoff(100*time.Millisecond, 10*time.Second, try+1)):
		}
	}
}

func (m *Manager) ask(ctx context.Context) error {
	v, err := m.node.cfg.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("ask for the runtime's version: %w", err)
	}
	m.node.runtimeName = v.GetRuntimeName()
	s, err := m.node.cfg.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask for the runtime's status: %w", err)
	}
	m.node.mountOptions = s.GetFeatures().GetMountOptions()
	m.node.handlers = map[string]*runtimeapi.RuntimeHandlerFeatures{}
	for _, h := range s.GetRuntimeHandlers() {
		m.node.handlers[h.GetName()] = h.GetFeatures()
	}
	return m.findAll(ctx)
}

// listen routes the runtime's events to the workers.
func (m *Manager) listen(ctx context.Context) {
	for try := 0; ctx.Err() == nil; try++ {
		// What happened before the runtime began to tell is looked for once it does.
		settled := time.AfterFunc(time.Second, func() {
			m.lookAll()
			m.lookForStrays()
		})
		began := time.Now()
		err := m.node.cfg.Runtime.Events(ctx, func(e *runtimeapi.ContainerEventResponse) {
			uid := types.UID(e.GetPodSandboxStatus().GetMetadata().GetUid())
			if w, ok := m.node.registry.get(uid); ok {
				w.mail.putEvent(e)
			} else if uid != "" && m.straying(e) {
				m.lookForStrays()
			}
		})
		settled.Stop()
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			try = 0
		}
		wait := plan.Backoff(time.Second, 30*time.Second, try+1)
		if grpcstatus.Code(err) == codes.Unimplemented {
			wait = time.Second // without events it has to be asked
		} else {
			m.log.Warn("runtime has stopped telling events", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// lookAll makes every worker look at its pod, whatever it was told.
func (m *Manager) lookAll() {
	for _, w := range m.node.registry.all() {
		w.mail.putLook()
	}
}

func (m *Manager) update(ctx context.Context, u desired.Update) {
	if u.Synced {
		m.adoptNone(ctx)
		m.forgetResources()
		m.node.registry.synced.Store(true)
		m.node.registry.roomFreed()
		m.retryHeld(ctx)
		return
	}
	if u.Kind != "" && u.Kind != object.Pod {
		m.change(ctx, object.Ref{Kind: u.Kind, NamespacedName: u.Key}, u.Object)
		return
	}
	if u.Pod == nil {
		delete(m.desired, u.Key)
	} else {
		m.desired[u.Key] = u.Pod
	}
	m.reconcile(ctx, u.Key)
}

// Close refuses pods that come from now on, because the machine is being shut down. It is called with false when it is not after all.
func (m *Manager) Close(closed bool) {
	m.closed.Store(closed)
	m.opened.Store(!closed)
	m.node.askAgain() // for those that were refused, or have ended
}

func (m *Manager) startWorker(ctx context.Context, pod *corev1.Pod) *worker {
	w := newWorker(m.node, pod)
	if end := readMark(m.node.cfg.RootDir, pod.UID); end != nil && end.Evicted != nil {
		w.fate.evicted, w.fate.end = end.Evicted, new(end.ending())
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if m.live[key] == nil {
		m.live[key] = map[types.UID]*worker{}
	}
	m.live[key][pod.UID] = w
	m.node.registry.put(w)
	m.wait.Go(func() {
		w.managed.gone = w.run(ctx)
		m.ended <- w
	})
	return w
}

// endWorker makes the worker's pod end. Told twice it is told once.
func (m *Manager) endWorker(w *worker) {
	if w.managed.leaving {
		return
	}
	w.managed.leaving = true
	e := plan.Ending{Since: time.Now(), Grace: spec.Grace(w.share.Pod)}
	if before := readMark(m.node.cfg.RootDir, w.uid); before != nil && before.Evicted == nil {
		e = before.ending() // an agent before us has told it already
	}
	w.mail.putOrder(order{end: &e})
}

// bury forgets a worker that has ended, and lets those come who have waited for it.
func (m *Manager) bury(ctx context.Context, w *worker) {
	key := types.NamespacedName{Namespace: w.share.Pod.Namespace, Name: w.share.Pod.Name}
	delete(m.live[key], w.uid)
	if len(m.live[key]) == 0 {
		delete(m.live, key)
	}
	m.node.registry.drop(w)
	if ctx.Err() != nil {
		return
	}
	m.node.traces.forget(w.uid)
	m.node.status.Delete(w.share.Pod)
	m.node.registry.roomFreed()
	m.reconcile(ctx, key)
	m.retryHeld(ctx)
}

// List returns all pods with their status, in the order of their names. They are shared and must not be changed.
func (m *Manager) List() []*corev1.Pod { return m.node.status.List() }

// Get returns one pod with its status.
func (m *Manager) Get(namespace, name string) (*corev1.Pod, bool) {
	return m.node.status.Get(types.NamespacedName{Namespace: namespace, Name: name})
}

// Watch calls fn with ADDED for each pod there is, then with every change in order, until ctx ends or fn returns an error, which
// it returns.
func (m *Manager) Watch(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error {
	return m.node.status.Watch(ctx, fn)
}

// Subscribe begins a Watch that what it returns goes on with. That must be called, once.
func (m *Manager) Subscribe() func(context.Context, func(watch.EventType, *corev1.Pod) error) error {
	return m.node.status.Subscribe()
}

// Has says whether a pod has a worker, also one that ends it.
func (m *Manager) Has(uid types.UID) bool { return m.node.registry.has(uid) }

// Missed counts the changes in the runtime that a look has found and no event had told of.
func (m *Manager) Missed() int64 { return m.node.missed.Load() }

var errNoPod = errors.New("no such pod")

// Evict makes a pod end that is wanted. It stays known, as failed, until it is not wanted any more.
func (m *Manager) Evict(uid types.UID, e Eviction) error {
	w, ok := m.node.registry.get(uid)
	if !ok {
		return fmt.Errorf("evict %s: %w", uid, errNoPod)
	}
	w.mail.putEviction(e)
	return nil
}
