package device

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pinning"
)

// Wishes says which NUMA nodes the devices can come from that a container asks for, or the pod as a whole with
// container "". What a pod has already it keeps, so that there is nothing to wish for.
func (m *Manager) Wishes(pod *corev1.Pod, container string) []pinning.Wish {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	had := m.ledger.find(pod.UID)
	all, _ := m.asks(pod, had)
	if len(all) == 0 || had != nil && had.answers(all) {
		return nil
	}
	var asked ask
	if container == "" {
		asked = whole(all)
	}
	for _, k := range all {
		if container != "" && k.container == container {
			asked = k
		}
	}
	var out []pinning.Wish
	for _, name := range asked.names() {
		// Init containers end before the others begin, so that what they would have is free for them.
		units := m.inventory.units(name)
		c := candidatesOf(units, m.ledger.others(pod.UID), &assignment{}, 0, name)
		if hints := hintsOf(units, m.cfg.Nodes, c.free, asked.counts[name]); hints != nil {
			out = append(out, pinning.Wish{
				Hints: hints, What: fmt.Sprintf("%d %s of %d free", asked.counts[name], name, len(c.free)),
			})
		}
	}
	return out
}

// hintsOf are the sets of nodes that n of the free devices can come from; nil: the plugin does not say where its
// devices are. A set is preferred when no smaller one has as many devices, free or not.
func hintsOf(units map[string]unit, nodes []int, free []Device, n int) []pinning.Hint {
	var all []pinning.Nodes
	for _, u := range units {
		if set := u.set(); set != 0 {
			all = append(all, set)
		}
	}
	if len(all) == 0 {
		return nil
	}
	near := func(sets []pinning.Nodes, of pinning.Nodes) (count int) {
		for _, s := range sets {
			if s&of != 0 {
				count++
			}
		}
		return count
	}
	var open []pinning.Nodes
	for _, d := range free {
		open = append(open, pinning.NodesOf(d.Nodes...))
	}
	out := []pinning.Hint{}
	least := 0
	pinning.Subsets(nodes, func(set pinning.Nodes) {
		if least == 0 && near(all, set) >= n {
			least = set.Count()
		}
		if near(open, set) >= n {
			out = append(out, pinning.Hint{Nodes: set, Preferred: set.Count() == least})
		}
	})
	return out
}
