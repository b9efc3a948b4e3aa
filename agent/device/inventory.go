package device

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-node/berth/agent/pinning"
)

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

// inventory is which devices there are, by what plugins tell. Its methods can be called at any time.
type inventory struct {
	grace   time.Duration // how long the devices of a plugin that is gone count as those of the node
	log     *slog.Logger
	changed func()

	mu      sync.Mutex
	kinds   map[corev1.ResourceName]*kind
	offered map[corev1.ResourceName]bool // by a plugin that may be forgotten
}

// knows says whether a plugin has offered a resource.
func (v *inventory) knows(name corev1.ResourceName) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.kinds[name] != nil || v.offered[name]
}

// units are the devices of a resource, by their ID. They are replaced, never changed.
func (v *inventory) units(name corev1.ResourceName) map[string]unit {
	v.mu.Lock()
	defer v.mu.Unlock()
	if k := v.kinds[name]; k != nil {
		return k.units
	}
	return nil
}

// count is how many devices there are of each resource, and how many of these are well.
func (v *inventory) count() (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, k := range v.kinds {
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

// well are the devices that are, by resource.
func (v *inventory) well() []Group {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []Group
	for _, name := range slices.Sorted(maps.Keys(v.kinds)) {
		g := Group{Resource: name}
		units := v.kinds[name].units
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

// health is how a device is, as the status of a pod tells it.
func (v *inventory) health(name corev1.ResourceName, id string) corev1.ResourceHealthStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.kinds[name]
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
func (v *inventory) connected(p *plugin) {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.kinds[p.resource]
	if k == nil {
		k = &kind{}
		v.kinds[p.resource] = k
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
func (v *inventory) told(p *plugin, devices []*pluginapi.Device) {
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
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.kinds[p.resource]
	if k == nil || k.plugin != p {
		return
	}
	k.units = units
	v.changed()
}

// disconnected tells that a plugin is gone. Its devices cannot be given out, and after a while the node has them no
// more.
func (v *inventory) disconnected(p *plugin) {
	v.mu.Lock()
	defer v.mu.Unlock()
	k := v.kinds[p.resource]
	if k == nil || k.plugin != p {
		return
	}
	k.plugin = nil
	gone := make(map[string]unit, len(k.units))
	for id, u := range k.units {
		u.healthy = false
		gone[id] = u
	}
	k.units = gone
	k.expiry = time.AfterFunc(v.grace, func() { v.expire(p.resource, k) })
	v.changed()
}

func (v *inventory) expire(name corev1.ResourceName, k *kind) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.kinds[name] != k || k.plugin != nil {
		return
	}
	delete(v.kinds, name)
	v.offered[name] = true
	v.log.Info("devices of a plugin that has not come back are none of the node's any more", "resource", string(name))
	v.changed()
}

// plugin is what serves a resource.
func (v *inventory) plugin(name corev1.ResourceName) (*plugin, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if k := v.kinds[name]; k != nil && k.plugin != nil {
		return k.plugin, nil
	}
	return nil, fmt.Errorf("no device plugin for %s is connected", name)
}

// letGo lets the plugin of a resource go that is at that socket.
func (v *inventory) letGo(name corev1.ResourceName, socket string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if k := v.kinds[name]; k != nil && k.plugin != nil && k.plugin.socket == socket {
		k.plugin.end()
	}
}

// close has nothing happen any more when a plugin does not come back.
func (v *inventory) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, k := range v.kinds {
		if k.expiry != nil {
			k.expiry.Stop()
		}
	}
}
