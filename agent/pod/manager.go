// Package pod runs the pods of this node: it takes the latest desired pods from a channel and makes the runtime, the
// cgroups and the volumes be what they say.
//
// The [Manager] decides which pods there are, and has one worker for each. A worker looks at what the runtime has of
// its pod, lets a pure function plan the next steps, and takes them. Nothing is remembered that can be found again in
// the runtime, so a restart of the agent is no event in a pod's life.
package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/status"
)

// Manager has one worker for each pod. Its methods can be called at any time.
type Manager struct {
	node    *node
	log     *slog.Logger
	wait    sync.WaitGroup
	awaited chan struct{} // a pod that others may wait for has come up or gone down
	orphans *orphans
	link    *link
	closed  atomic.Bool // no pod may come
	opened  atomic.Bool // somebody has said that pods may come

	// What follows belongs to the goroutine of Run.
	workers  *workers
	desired  map[types.NamespacedName]wanted
	held     map[types.NamespacedName]status.Waiting // desired pods without a worker, and why
	admitter *admitter
	left     *leftovers
}

// wanted is a pod that is desired.
type wanted struct {
	pod   *corev1.Pod // nil: there is none
	rules desired.Rules
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
			cfg: c, status: c.Statuses, registry: newRegistry(c.Statuses), tally: newTally(), traces: t,
			starting: newGate(c.MaxParallelStarts), stopping: newGate(c.MaxParallelStarts), again: make(chan struct{}, 1),
			dead: newDead(*c.Node.Dead), reservations: reservations{granted: map[types.UID]grant{}}, resources: c.Given.Resources,
		},
		log: c.Log, awaited: make(chan struct{}, 1),
		desired: map[types.NamespacedName]wanted{}, held: map[types.NamespacedName]status.Waiting{},
	}
	m.workers = newWorkers(m.node)
	m.node.environments = newEnvironments(m.node)
	m.orphans = &orphans{node: m.node, log: c.Log, wanted: make(chan struct{}, 1), found: make(chan []*corev1.Pod)}
	m.link = &link{node: m.node, log: c.Log, orphans: m.orphans}
	m.admitter, m.left = newAdmitter(m), &leftovers{manager: m}
	return m, nil
}

// Active are the pods that the node has taken in and that have not come to their end, with their status once they have
// one: those whose requests count. A pod that was refused, or waits to be taken in, is none of them.
func (m *Manager) Active() []*corev1.Pod {
	all, _ := m.node.registry.pods()
	return slices.DeleteFunc(all, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// Run makes the node run the pods that updates tell of, until ctx ends and everything it started has ended. The pods go
// on. It runs once.
func (m *Manager) Run(ctx context.Context, updates <-chan desired.Update) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.wait.Wait()
	defer m.workers.drain()
	defer cancel()
	found, ok := m.link.survey(ctx)
	if !ok {
		return nil
	}
	m.left.found = found
	m.wait.Go(func() { m.link.listen(ctx) })
	m.wait.Go(func() { m.orphans.watch(ctx) })
	m.wait.Go(func() { m.node.cfg.Given.Pins.Run(ctx, m.node.cfg.Resync) })
	changes := make(chan resourceChange)
	for _, r := range m.node.resources {
		m.wait.Go(func() { watchResource(ctx, r, changes) })
	}
	m.wait.Go(func() { watchAwaited(ctx, m.node.status, m.awaited) })
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
		case w := <-m.workers.ended:
			m.removeWorker(ctx, w)
		case <-m.node.again:
			m.retryHeld(ctx)
		case c := <-changes:
			m.resourceChanged(ctx, c)
		case <-m.awaited:
			m.retryHeld(ctx)
		case pods := <-m.orphans.found:
			m.left.takeOrphans(ctx, pods)
		case <-resync.C:
			m.node.registry.lookAll()
			m.orphans.look()
		}
	}
}

func (m *Manager) update(ctx context.Context, u desired.Update) {
	if u.Synced {
		m.left.adoptNone(ctx)
		m.node.forgetResources()
		m.node.registry.synced.Store(true)
		m.node.registry.retryDeferred()
		m.retryHeld(ctx)
		m.orphans.look()
		return
	}
	if u.Kind != "" && u.Kind != object.Pod {
		m.change(ctx, &u)
		return
	}
	if u.Pod == nil {
		delete(m.desired, u.Key)
	} else {
		m.desired[u.Key] = wanted{u.Pod, u.Origin.Rules()}
	}
	m.reconcile(ctx, u.Key)
}

// Close refuses pods that come from now on, because the machine is being shut down. It is called with false when it is
// not after all.
func (m *Manager) Close(closed bool) {
	m.closed.Store(closed)
	m.opened.Store(!closed)
	m.node.askAgain() // for those that were refused, or have ended
}

// Closed says whether pods are refused since the machine is being shut down.
func (m *Manager) Closed() bool { return m.closed.Load() }

// removeWorker forgets one that has ended, and lets those come who have waited for it.
func (m *Manager) removeWorker(ctx context.Context, w *worker) {
	key := m.workers.forget(w)
	m.node.dead.forget(w.uid)
	if ctx.Err() != nil {
		return
	}
	m.node.traces.forget(w.uid)
	m.node.status.Delete(w.share.Pod)
	m.node.registry.retryDeferred()
	m.reconcile(ctx, key)
	m.retryHeld(ctx)
}

// List returns all pods with their status, in the order of their names. They are shared and must not be changed.
func (m *Manager) List() []*corev1.Pod { return m.node.status.List() }

// Get returns one pod with its status.
func (m *Manager) Get(namespace, name string) (*corev1.Pod, bool) {
	return m.node.status.Get(types.NamespacedName{Namespace: namespace, Name: name})
}

// Watch calls fn with ADDED for each pod there is, then with every change in order, until ctx ends or fn returns an
// error, which it returns.
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
