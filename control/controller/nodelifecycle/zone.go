package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// excluded is the label of nodes that do not count for their zone.
const excluded = "node.kubernetes.io/exclude-disruption"

// zone is how the nodes of one are.
type zone struct{ ready, lost int }

// zoneOf is the name of the zone that a node is in, of whatever region.
func zoneOf(node *corev1.Node) string {
	region, name := node.Labels[corev1.LabelTopologyRegion], node.Labels[corev1.LabelTopologyZone]
	if region == "" {
		region = node.Labels[corev1.LabelFailureDomainBetaRegion]
	}
	if name == "" {
		name = node.Labels[corev1.LabelFailureDomainBetaZone]
	}
	return region + "\x00" + name
}

// zonesOf are the zones of nodes, some of which are well.
func zonesOf(nodes []*corev1.Node, well func(*corev1.Node) bool) map[string]zone {
	all := map[string]zone{}
	for _, n := range nodes {
		if _, apart := n.Labels[excluded]; apart {
			continue
		}
		z := all[zoneOf(n)]
		if well(n) {
			z.ready++
		} else {
			z.lost++
		}
		all[zoneOf(n)] = z
	}
	return all
}

// isDark says whether no node of any zone is ready.
func isDark(zones map[string]zone) bool {
	for _, z := range zones {
		if z.ready > 0 {
			return false
		}
	}
	return true
}

// apart is how long it is from one node of a zone that is given up to the next; none: no node is, and it is how long
// until to ask again. A zone of which nothing is left is given up as fast as one that is well: there are others where
// pods can go.
func (z zone) apart(r Rules) (d time.Duration, none bool) {
	all := z.ready + z.lost
	switch {
	case z.ready == 0 || z.lost <= fewNodes || float64(z.lost) < r.Disrupted*float64(all):
		return every(r.Rate)
	case all > r.LargeZone:
		return every(r.SlowRate)
	}
	return askAgain, true
}

// every is how long it is from one to the next at a rate per second.
func every(rate float64) (d time.Duration, none bool) {
	if rate <= 0 {
		return askAgain, true
	}
	return time.Duration(float64(time.Second) / rate), false
}
