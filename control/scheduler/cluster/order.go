package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

// order is in which order nodes are looked at: one of each zone in turn, so that who looks at some nodes only looks at
// all zones.
type order struct {
	zones   []string
	members map[string][]string // by zone
	zone    map[string]string   // by node
	// changed counts up whenever the order is another one.
	changed int64
}

func newOrder() order {
	return order{members: map[string][]string{}, zone: map[string]string{}}
}

func (o *order) set(node *corev1.Node) {
	zone := topology.GetZoneKey(node)
	before, there := o.zone[node.Name]
	if there && before == zone {
		return
	}
	o.remove(node.Name)
	if _, known := o.members[zone]; !known {
		o.zones = append(o.zones, zone)
	}
	o.members[zone] = append(o.members[zone], node.Name)
	o.zone[node.Name] = zone
	o.changed++
}

func (o *order) remove(name string) {
	zone, there := o.zone[name]
	if !there {
		return
	}
	delete(o.zone, name)
	left := slices.DeleteFunc(o.members[zone], func(n string) bool { return n == name })
	o.members[zone] = left
	if len(left) == 0 {
		delete(o.members, zone)
		o.zones = slices.DeleteFunc(o.zones, func(z string) bool { return z == zone })
	}
	o.changed++
}

// names are all nodes in order.
func (o *order) names() []string {
	all := make([]string, 0, len(o.zone))
	for i := 0; len(all) < len(o.zone); i++ {
		for _, zone := range o.zones {
			if names := o.members[zone]; i < len(names) {
				all = append(all, names[i])
			}
		}
	}
	return all
}
