package device

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pinning"
)

// candidates are the devices that a container can have.
type candidates struct {
	must []Device // those of the pod's init containers, who have ended by then
	free []Device
}

// candidatesOf are those of a resource's devices that the container of a with that index can have, beside others. They
// are what is well and nobody's, and what was the pod's init containers'.
func candidatesOf(
	units map[string]unit, others []*assignment, a *assignment, container int, name corev1.ResourceName,
) candidates {
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
	for id, u := range units {
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

// pick chooses n devices: first those of init containers, then those of nodes that are near, then those that are near
// to none, and of these first what is preferred.
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
