// Package device gives containers the devices that device plugins offer: it is what kubelet's device manager is, over kubelet's
// device plugin API v1beta1.
//
// A plugin registers on a socket and then tells, as long as it lives, which devices there are and which of them are well. What
// was given to whom is the only state that lasts. It is in one file, written before anybody acts on it: devices are chosen and
// written down when a pod is admitted, the plugin is asked for them when the pod is prepared, and its answer is written down too,
// so that a container can be started again by the next agent, whether or not the plugin is there then.
package device

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/agent/pinning"
)

// SocketName is that of the registration service in the directory of the sockets. Plugins know it by this name.
const SocketName = "kubelet.sock"

// defaultGrace is how long the devices of a plugin that is gone count as those of the node, by kubelet's rule: plugins are updated.
const defaultGrace = 5 * time.Minute

// Config is what a [Manager] works with. Dir and File are required.
type Config struct {
	Dir   string // of the sockets: the registration service's and the plugins'
	File  string // of the assignments
	Nodes []int  // NUMA nodes of the machine
	Grace time.Duration
	Log   *slog.Logger
}

// Device is one device that a container has.
type Device struct {
	ID    string `json:"id"`
	Nodes []int  `json:"nodes,omitempty"` // NUMA nodes that it is near to; none: the plugin does not say
}

// unit is one device of a plugin.
type unit struct {
	healthy bool
	nodes   []int
}

func (u unit) set() pinning.Nodes { return pinning.NodesOf(u.nodes...) }

// kind is what is known of one resource.
type kind struct {
	units  map[string]unit
	plugin *plugin     // nil: gone
	expiry *time.Timer // of what is known of it, once the plugin is gone
}

// Manager gives out the devices of all plugins. A nil Manager has none. Its methods can be called at any time.
type Manager struct {
	cfg     Config
	log     *slog.Logger
	changed chan struct{}
	metrics *metrics
	ctx     context.Context // of what is heard of plugins
	stop    context.CancelFunc
	wait    sync.WaitGroup

	mu    sync.Mutex
	kinds map[corev1.ResourceName]*kind
	pods  []*assignment // in the order of their admission
}

// New takes over what was given out before. Nothing is served before [Manager.Run].
func New(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Grace == 0 {
		c.Grace = defaultGrace
	}
	m := &Manager{
		cfg: c, log: c.Log, changed: make(chan struct{}, 1), metrics: newMetrics(), kinds: map[corev1.ResourceName]*kind{},
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m, m.load()
}

// Changed tells that there are other devices than before, or that some have come free. It is nil for a nil Manager.
func (m *Manager) Changed() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.changed
}

func (m *Manager) ring() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Resources are the devices of the node by resource: all there are, and those that are well and can be given out.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	if m == nil {
		return capacity, allocatable
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, k := range m.kinds {
		well := 0
		for _, u := range k.units {
			if u.healthy {
				well++
			}
		}
		capacity[name] = *resource.NewQuantity(int64(len(k.units)), resource.DecimalSI)
		allocatable[name] = *resource.NewQuantity(int64(well), resource.DecimalSI)
	}
	return capacity, allocatable
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
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Group
	for _, name := range slices.Sorted(maps.Keys(m.kinds)) {
		g := Group{Resource: name}
		units := m.kinds[name].units
		for _, id := range slices.Sorted(maps.Keys(units)) {
			if units[id].healthy {
				g.Devices = append(g.Devices, Device{ID: id, Nodes: units[id].nodes})
			}
		}
		if len(g.Devices) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// Of are the devices of a container.
func (m *Manager) Of(uid types.UID, container string) []Group {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Group
	for _, h := range m.heldBy(uid, container) {
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
	a := m.find(uid)
	if a == nil {
		return nil
	}
	out := map[string][]corev1.ResourceStatus{}
	for _, g := range a.Containers {
		for _, h := range g.Held {
			st := corev1.ResourceStatus{Name: h.Resource}
			for _, d := range h.Devices {
				st.Resources = append(st.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(d.ID), Health: m.healthOf(h.Resource, d.ID)})
			}
			out[g.Container] = append(out[g.Container], st)
		}
	}
	return out
}

func (m *Manager) healthOf(name corev1.ResourceName, id string) corev1.ResourceHealthStatus {
	k := m.kinds[name]
	if k == nil {
		return corev1.ResourceHealthStatusUnknown
	}
	u, ok := k.units[id]
	switch {
	case !ok || k.plugin == nil:
		return corev1.ResourceHealthStatusUnknown
	case u.healthy:
		return corev1.ResourceHealthStatusHealthy
	}
	return corev1.ResourceHealthStatusUnhealthy
}

// connected makes p the plugin of a resource. One that was it before is let go.
func (m *Manager) connected(p *plugin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[p.resource]
	if k == nil {
		k = &kind{}
		m.kinds[p.resource] = k
	}
	if k.plugin != nil {
		k.plugin.end()
	}
	if k.expiry != nil {
		k.expiry.Stop()
		k.expiry = nil
	}
	k.plugin = p
}

// told takes what a plugin says of its devices.
func (m *Manager) told(p *plugin, devices []*pluginapi.Device) {
	units := make(map[string]unit, len(devices))
	for _, d := range devices {
		u := unit{healthy: d.GetHealth() == pluginapi.Healthy}
		for _, n := range d.GetTopology().GetNodes() {
			// A number that no set of nodes can hold is a mistake of the plugin's, and says nothing.
			if id := n.GetID(); id >= 0 && id < 64 {
				u.nodes = append(u.nodes, int(id))
			}
		}
		slices.Sort(u.nodes)
		units[d.GetID()] = u
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[p.resource]
	if k == nil || k.plugin != p {
		return
	}
	k.units = units
	m.ring()
}

// disconnected tells that a plugin is gone. Its devices cannot be given out, and after a while the node has them no more.
func (m *Manager) disconnected(p *plugin) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[p.resource]
	if k == nil || k.plugin != p {
		return
	}
	k.plugin = nil
	for id, u := range k.units {
		u.healthy = false
		k.units[id] = u
	}
	k.expiry = time.AfterFunc(m.cfg.Grace, func() { m.expire(p.resource, k) })
	m.ring()
}

func (m *Manager) expire(name corev1.ResourceName, k *kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kinds[name] != k || k.plugin != nil {
		return
	}
	delete(m.kinds, name)
	m.log.Info("devices of a plugin that has not come back are none of the node's any more", "resource", string(name))
	m.ring()
}

// pluginOf is what serves a resource.
func (m *Manager) pluginOf(name corev1.ResourceName) (*plugin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.kinds[name]; k != nil && k.plugin != nil {
		return k.plugin, nil
	}
	return nil, fmt.Errorf("no device plugin for %s is connected", name)
}

// close lets all plugins go.
func (m *Manager) close() {
	m.mu.Lock()
	for _, k := range m.kinds {
		if k.expiry != nil {
			k.expiry.Stop()
		}
	}
	m.mu.Unlock()
	m.stop()
	m.wait.Wait()
}
