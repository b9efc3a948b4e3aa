package controller

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// PortsKey tells sets of ports apart, in whatever order they are.
func PortsKey(ports []discoveryv1.EndpointPort) string {
	all := make([]string, 0, len(ports))
	for _, p := range ports {
		all = append(all, fmt.Sprintf("%q/%q/%d/%q", ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.AppProtocol, "")))
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// PortSets numbers the different sets of ports that the endpoints of a service have, in the order in which they come: a
// number is less to compare, and to keep for each endpoint, than ten thousand ports. The zero value has none.
type PortSets[S any] struct {
	numbers map[string]int
	sets    []S
}

// Number is the number of the set that a key tells from others.
func (p *PortSets[S]) Number(key string, set S) int {
	n, is := p.numbers[key]
	if !is {
		if p.numbers == nil {
			p.numbers = map[string]int{}
		}
		n = len(p.sets)
		p.numbers[key] = n
		p.sets = append(p.sets, set)
	}
	return n
}

// Set is the set of a number, and false where no set has it.
func (p *PortSets[S]) Set(n int) (set S, ok bool) {
	if n < 0 || n >= len(p.sets) {
		return set, false
	}
	return p.sets[n], true
}

// Len is how many sets there are.
func (p *PortSets[S]) Len() int { return len(p.sets) }
