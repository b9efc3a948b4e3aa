package device

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pinning"
)

// Shortage says that there are not as many devices free as a pod asks for.
type Shortage struct {
	Resource             corev1.ResourceName
	Requested, Available int
}

// Error is in kubelet's words, which people look for.
func (e *Shortage) Error() string {
	return fmt.Sprintf("Allocate failed due to requested number of devices unavailable for %s. Requested: %d, Available: %d, which is unexpected",
		e.Resource, e.Requested, e.Available)
}

// Admit gives a pod the devices that it asks for, or says with a [Shortage] that they cannot be had now. A pod that has
// them keeps them: it can be asked again at any time, also by the next agent. near says which NUMA nodes a container's
// are to come from.
func (m *Manager) Admit(pod *corev1.Pod, near func(container string) pinning.Nodes) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	had := m.ledger.find(pod.UID)
	all, without := m.asks(pod, had)
	if had == nil && len(all)+len(without) == 0 || had != nil && had.answers(all) && slices.Equal(had.Without, without) {
		return nil
	}
	got := &assignment{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Without: without}
	others := m.ledger.others(pod.UID)
	for _, k := range all {
		g := given{Container: k.container, Init: k.init}
		for _, name := range k.names() {
			h := held{Resource: name, Near: near(k.container)}
			c := candidatesOf(m.inventory.units(name), others, got, len(got.Containers), name)
			if len(c.free)+len(c.must) < k.counts[name] {
				return &Shortage{name, k.counts[name], len(c.free) + len(c.must)}
			}
			h.Devices = c.pick(k.counts[name], h.Near, nil)
			g.Held = append(g.Held, h)
		}
		got.Containers = append(got.Containers, g)
	}
	return m.ledger.put(got)
}

// asks are what a pod asks the node for, and what it does without, which was decided when it was admitted: a container
// of it may run by now. The lock is held.
func (m *Manager) asks(pod *corev1.Pod, had *assignment) (all []ask, without []corev1.ResourceName) {
	elsewhere := m.cfg.Elsewhere(pod)
	return split(asks(pod), func(name corev1.ResourceName) bool {
		if had != nil {
			return !slices.Contains(had.Without, name)
		}
		return !elsewhere || m.inventory.knows(name)
	})
}

// Has says whether a pod has devices.
func (m *Manager) Has(uid types.UID) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.find(uid) != nil
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
	dropped, err := m.ledger.drop(gone)
	if dropped {
		m.ring()
	}
	return err
}
