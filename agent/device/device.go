// Package device gives containers the devices that device plugins offer: it is what kubelet's device manager is, over
// kubelet's device plugin API v1beta1.
//
// A plugin registers on a socket and then tells, as long as it lives, which devices there are and which of them are
// well. What was given to whom is the only state that lasts. It is in one file, written before anybody acts on it:
// devices are chosen and written down when a pod is admitted, the plugin is asked for them when the pod is prepared,
// and its answer is written down too, so that a container can be started again by the next agent, whether or not the
// plugin is there then.
package device

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SocketName is that of the registration service in the directory of the sockets. Plugins know it by this name.
const SocketName = "kubelet.sock"

// defaultGrace is how long the devices of a plugin that is gone count as those of the node, by kubelet's rule: plugins
// are updated.
const defaultGrace = 5 * time.Minute

// Config is what a [Manager] works with. Dir and File are required.
type Config struct {
	Dir   string // of the sockets: the registration service's and the plugins'
	File  string // of the assignments
	Nodes []int  // NUMA nodes of the machine
	Grace time.Duration
	// Elsewhere says whether a resource that no plugin has offered here is somebody else's to count for a pod, which
	// runs without it then; nil: for none.
	Elsewhere func(*corev1.Pod) bool
	Log       *slog.Logger
}

// Device is one device that a container has.
type Device struct {
	ID    string `json:"id"`
	Nodes []int  `json:"nodes,omitempty"` // NUMA nodes that it is near to; none: the plugin does not say
}

// Manager gives out the devices of all plugins. A nil Manager has none. Its methods can be called at any time.
type Manager struct {
	cfg       Config
	log       *slog.Logger
	changed   chan struct{}
	metrics   *metrics
	inventory *inventory
	plugins   *plugins

	mu     sync.Mutex // of the ledger
	ledger ledger

	told atomic.Pointer[func()]
}

// New takes over what was given out before. Nothing is served before [Manager.Run].
func New(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	if c.Elsewhere == nil {
		c.Elsewhere = func(*corev1.Pod) bool { return false }
	}
	m := &Manager{
		cfg: c, log: c.Log, changed: make(chan struct{}, 1), metrics: newMetrics(), ledger: ledger{file: c.File, log: c.Log},
	}
	m.inventory = &inventory{grace: c.Grace, log: c.Log, changed: m.ring}
	m.inventory.kinds, m.inventory.offered = map[corev1.ResourceName]*kind{}, map[corev1.ResourceName]bool{}
	m.plugins = &plugins{dir: c.Dir, log: c.Log, metrics: m.metrics, inventory: m.inventory}
	m.plugins.ctx, m.plugins.stop = context.WithCancel(context.Background())
	return m, m.ledger.load()
}

// Run serves the registration of plugins until ctx ends and nothing is heard of any plugin any more. It runs once, but
// may be run again when it could not serve and ctx has not ended.
func (m *Manager) Run(ctx context.Context) error { return m.plugins.run(ctx) }

// Register makes a plugin of the plugin registration directory the one of its resource.
func (m *Manager) Register(name, socket string, versions []string) error {
	if err := errors.Join(CheckVersions(versions), CheckName(corev1.ResourceName(name))); err != nil {
		return err
	}
	return m.plugins.connect(corev1.ResourceName(name), socket, nil)
}

// Deregister lets the plugin of a resource go that is at that socket.
func (m *Manager) Deregister(name, socket string) {
	m.inventory.letGo(corev1.ResourceName(name), socket)
}

// Changed tells that there are other devices than before, or that some have come free. It is nil for a nil Manager.
func (m *Manager) Changed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.changed
}

// Notify has fn called, too, whenever Changed tells something. It must not wait.
func (m *Manager) Notify(fn func()) { m.told.Store(&fn) }

func (m *Manager) ring() {
	if fn := m.told.Load(); fn != nil {
		(*fn)()
	}
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Resources are the devices of the node by resource: all there are, and those that are well and can be given out.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	if m == nil {
		return corev1.ResourceList{}, corev1.ResourceList{}
	}
	return m.inventory.count()
}

// Group is devices of one resource.
type Group struct {
	Resource corev1.ResourceName
	Devices  []Device
}

// Allocatable are the devices that are well, by resource, whoever has them.
func (m *Manager) Allocatable() []Group {
	if m == nil {
		return nil
	}
	return m.inventory.well()
}

// Of are the devices of a container.
func (m *Manager) Of(uid types.UID, container string) []Group {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Group
	for _, h := range m.ledger.heldBy(uid, container) {
		out = append(out, Group{h.Resource, slices.Clone(h.Devices)})
	}
	return out
}

// Health is how the devices of a pod's containers are, as its status tells it.
func (m *Manager) Health(uid types.UID) map[string][]corev1.ResourceStatus {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.ledger.find(uid)
	if a == nil {
		return nil
	}
	out := map[string][]corev1.ResourceStatus{}
	for _, g := range a.Containers {
		for _, h := range g.Held {
			st := corev1.ResourceStatus{Name: h.Resource}
			for _, d := range h.Devices {
				st.Resources = append(st.Resources, corev1.ResourceHealth{
					ResourceID: corev1.ResourceID(d.ID), Health: m.inventory.health(h.Resource, d.ID),
				})
			}
			out[g.Container] = append(out[g.Container], st)
		}
	}
	return out
}
