package device

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pinning"
)

// held is what a container has of one resource.
type held struct {
	Resource corev1.ResourceName `json:"resource"`
	Devices  []Device            `json:"devices"`
	Near     pinning.Nodes       `json:"near,omitempty"` // the NUMA nodes that they were to come from

	Allocated bool   `json:"allocated,omitempty"` // the plugin was asked for them, and has answered
	PreStart  bool   `json:"preStart,omitempty"`  // it wants to be asked before each start
	Response  []byte `json:"response,omitempty"`  // its answer: a ContainerAllocateResponse
}

func (h *held) ids() []string {
	out := make([]string, 0, len(h.Devices))
	for _, d := range h.Devices {
		out = append(out, d.ID)
	}
	return out
}

// given is what one container has.
type given struct {
	Container string `json:"container"`
	Init      bool   `json:"init,omitempty"`
	Held      []held `json:"held"`
}

// assignment is what a pod has.
type assignment struct {
	UID        types.UID `json:"uid"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	Containers []given   `json:"containers"`
}

// answers says whether the pod has what it asks for.
func (a *assignment) answers(all []ask) bool {
	if len(a.Containers) != len(all) {
		return false
	}
	for i := range all {
		g := &a.Containers[i]
		if g.Container != all[i].container || g.Init != all[i].init || len(g.Held) != len(all[i].counts) {
			return false
		}
		for _, h := range g.Held {
			if len(h.Devices) != all[i].counts[h.Resource] {
				return false
			}
		}
	}
	return true
}

func (m *Manager) find(uid types.UID) *assignment {
	for _, a := range m.pods {
		if a.UID == uid {
			return a
		}
	}
	return nil
}

func (m *Manager) heldBy(uid types.UID, container string) []held {
	a := m.find(uid)
	if a == nil {
		return nil
	}
	for _, g := range a.Containers {
		if g.Container == container {
			return g.Held
		}
	}
	return nil
}

func (m *Manager) others(uid types.UID) []*assignment {
	return slices.DeleteFunc(slices.Clone(m.pods), func(a *assignment) bool { return a.UID == uid })
}

// Shortage says that there are not as many devices free as a pod asks for.
type Shortage struct {
	Resource             corev1.ResourceName
	Requested, Available int
}

// Error is in kubelet's words, which people look for.
func (e *Shortage) Error() string {
	return fmt.Sprintf("Allocate failed due to requested number of devices unavailable for %s. Requested: %d, Available: %d, which is unexpected", e.Resource, e.Requested, e.Available)
}

// Admit gives a pod the devices that it asks for, or says with a [Shortage] that they cannot be had now. A pod that has them keeps
// them: it can be asked again at any time, also by the next agent. near says which NUMA nodes a container's are to come from.
func (m *Manager) Admit(pod *corev1.Pod, near func(container string) pinning.Nodes) error {
	if m == nil {
		return nil
	}
	all := asks(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	had := m.find(pod.UID)
	if had == nil && len(all) == 0 || had != nil && had.answers(all) {
		return nil
	}
	got := &assignment{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
	others := m.others(pod.UID)
	for _, k := range all {
		g := given{Container: k.container, Init: k.init}
		for _, name := range k.names() {
			h := held{Resource: name, Near: near(k.container)}
			c := m.candidates(others, got, len(got.Containers), name)
			if len(c.free)+len(c.must) < k.counts[name] {
				return &Shortage{name, k.counts[name], len(c.free) + len(c.must)}
			}
			h.Devices = c.pick(k.counts[name], h.Near, nil)
			g.Held = append(g.Held, h)
		}
		got.Containers = append(got.Containers, g)
	}
	before := m.pods
	if m.pods = others; len(got.Containers) > 0 {
		m.pods = append(m.pods, got)
	}
	if err := m.save(); err != nil {
		m.pods = before
		return err
	}
	return nil
}

// candidates are the devices that a container can have.
type candidates struct {
	must []Device // those of the pod's init containers, who have ended by then
	free []Device
}

// candidates of the container of a with that index, beside others. They are what is well and nobody's, and what was the pod's
// init containers'.
func (m *Manager) candidates(others []*assignment, a *assignment, container int, name corev1.ResourceName) candidates {
	k := m.kinds[name]
	if k == nil {
		return candidates{}
	}
	taken, again := map[string]bool{}, map[string]bool{}
	for _, o := range others {
		for i := range o.Containers {
			each(&o.Containers[i], name, func(id string) { taken[id] = true })
		}
	}
	for i := range a.Containers {
		g := &a.Containers[i]
		each(g, name, func(id string) {
			if i != container {
				taken[id] = true
			}
			if i < container {
				again[id] = g.Init
			}
		})
	}
	var out candidates
	for id, u := range k.units {
		d := Device{ID: id, Nodes: u.nodes}
		switch {
		case !u.healthy:
		case again[id]:
			out.must = append(out.must, d)
		case !taken[id]:
			out.free = append(out.free, d)
		}
	}
	byID := func(a, b Device) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(out.must, byID)
	slices.SortFunc(out.free, byID)
	return out
}

func each(g *given, name corev1.ResourceName, fn func(id string)) {
	for i := range g.Held {
		if g.Held[i].Resource == name {
			for _, d := range g.Held[i].Devices {
				fn(d.ID)
			}
		}
	}
}

// pick chooses n devices: first those of init containers, then those of nodes that are near, then those that are near to none, and of
// these first what is preferred.
func (c *candidates) pick(n int, near pinning.Nodes, preferred []string) []Device {
	far := func(d Device) int {
		switch set := pinning.NodesOf(d.Nodes...); {
		case near == 0 || set&near != 0:
			return 0
		case set == 0:
			return 1
		}
		return 2
	}
	liked := map[string]int{}
	for _, id := range preferred {
		liked[id] = -1
	}
	order := func(a, b Device) int {
		return cmp.Or(cmp.Compare(far(a), far(b)), cmp.Compare(liked[a.ID], liked[b.ID]), cmp.Compare(a.ID, b.ID))
	}
	must, free := slices.Clone(c.must), slices.Clone(c.free)
	slices.SortFunc(must, order)
	slices.SortFunc(free, order)
	out := append(must, free...)
	return out[:min(n, len(out))]
}

// aligned are the candidates that are near, when there are enough of them.
func (c *candidates) aligned(n int, near pinning.Nodes) []Device {
	all := slices.Concat(c.must, c.free)
	if near == 0 {
		return all
	}
	var out []Device
	for _, d := range all {
		if pinning.NodesOf(d.Nodes...)&near != 0 || slices.ContainsFunc(c.must, func(x Device) bool { return x.ID == d.ID }) {
			out = append(out, d)
		}
	}
	if len(out) < n {
		return all
	}
	return out
}

// Has says whether a pod has devices.
func (m *Manager) Has(uid types.UID) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.find(uid) != nil
}

// Release takes back what a pod has. Nothing of it may run any more.
func (m *Manager) Release(uid types.UID) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drop(func(a *assignment) bool { return a.UID == uid })
}

// Synced takes back what pods have that are not there any more.
func (m *Manager) Synced(here func(types.UID) bool) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drop(func(a *assignment) bool { return !here(a.UID) })
}

func (m *Manager) drop(gone func(*assignment) bool) error {
	before := m.pods
	m.pods = slices.DeleteFunc(slices.Clone(m.pods), gone)
	if len(m.pods) == len(before) {
		return nil
	}
	if err := m.save(); err != nil {
		m.pods = before
		return err
	}
	m.ring()
	return nil
}
