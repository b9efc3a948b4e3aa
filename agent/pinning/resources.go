package pinning

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Of is what a container has of its own: CPUs and memory of NUMA nodes.
func (m *Manager) Of(uid types.UID, container string) (cpus []int, memory []Block) {
	if m == nil {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.book.find(uid)
	if a == nil {
		return nil, nil
	}
	for i := range a.Containers {
		if g := &a.Containers[i]; g.Container == container {
			return g.set().List(), slices.Clone(g.Memory)
		}
	}
	return nil, nil
}

// Allocatable is what containers can have of their own, whoever has it: CPUs, and memory by node.
func (m *Manager) Allocatable() (cpus []int, memory []Block) {
	if m == nil {
		return nil, nil
	}
	return m.alloc.allocatable()
}
