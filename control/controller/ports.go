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
