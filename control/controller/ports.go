package controller

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// PortsKey tells sets of ports apart, in whatever order they are.
func PortsKey(ports []discoveryv1.EndpointPort) string {
	all := make([]string, 0, len(ports))
	for _, p := range ports {
		all = append(all, fmt.Sprintf("%q/%q/%d/%q", valueOf(p.Name), valueOf(p.Protocol), valueOf(p.Port), valueOf(p.AppProtocol)))
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

func valueOf[T any](p *T) T {
	if p == nil {
		var none T
		return none
	}
	return *p
}
