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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/eviction"
)

// Manager has one worker for each pod. Its methods can be called at any time.
type Manager struct {
	node   *node
	log    *slog.Logger
	ended  chan *worker
	wait   sync.WaitGroup
	turns  chan struct{} // a pod that others may wait for has come up or gone down
	strays *strays
	link   *link
	closed atomic.Bool // no pod may come
	opened atomic.Bool // somebody has said that pods may come

	// What follows belongs to the goroutine of Run.
	desired  map[types.NamespacedName]*corev1.Pod
	live     map[types.NamespacedName]map[types.UID]*worker
	held     map[types.NamespacedName]status.Waiting // desired pods without a worker, and why
	admitter *admitter
	left     *leftovers
}

// New returns a Manager that does nothing before [Manager.Run].
func New(c Config) (*Manager, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	t := newTraces()
	c.TracerProvider.RegisterSpanProcessor(t)
	m := &Manager{
		node: &node{
			cfg: c, status: c.Statuses, registry: newRegistry(c.Statuses), traces: t,
			starting: newGate(c.MaxParallelStarts), stopping: newGate(c.MaxParallelStarts), again: make(chan struct{}, 1),
			pool:  &idPool{rootDir: c.RootDir, etc: "/etc"},
			rooms: rooms{granted: map[types.UID]grant{}}, resources: c.Given.Resources,
		},
		log: c.Log, ended: make(chan *worker), turns: make(chan struct{}, 1),
		desired: map[types.NamespacedName]*corev1.Pod{}, live: map[types.NamespacedName]map[types.UID]*worker{},
		held: map[types.NamespacedName]status.Waiting{},
	}
	m.strays = &strays{node: m.node, log: c.Log, wanted: make(chan struct{}, 1), found: make(chan []*corev1.Pod)}
	m.link = &link{node: m.node, log: c.Log, strays: m.strays}
	m.admitter, m.left = newAdmitter(m), &leftovers{manager: m}
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
	found, ok := m.link.survey(ctx)
	if !ok {
		return nil
	}
	m.left.found = found
	m.wait.Go(func() { m.link.listen(ctx) })
	m.wait.Go(func() { m.strays.watch(ctx) })
	m.wait.Go(func() { m.node.cfg.Given.Pins.Run(ctx, m.node.cfg.Resync) })
	changes := make(chan resourceChange)
	for _, r := range m.node.resources {
		m.wait.Go(func() { watchResource(ctx, r, changes) })
	}
	m.wait.Go(func() { watchTurns(ctx, m.node.status, m.turns) })
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
		case pods := <-m.strays.found:
			m.left.takeStrays(ctx, pods)
		case <-resync.C:
			m.node.registry.lookAll()
			m.strays.look()
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

func (m *Manager) update(ctx context.Context, u desired.Update) {
	if u.Synced {
		m.left.adoptNone(ctx)
		m.node.forgetResources()
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
	return m.node.status.Subscribe()(ctx, fn)
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
