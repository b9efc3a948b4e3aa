package mirroring

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/endpoints"
)

// maxName is how long the name of an object is at most.
const maxName = 253

// leftOut is how many addresses are not mirrored.
type leftOut struct{ invalid, many int }

// mirrored are the slices of an Endpoints object: for each set of ports one of a family. Their names are the same
// whenever they are made, so that none is made twice.
func mirrored(e *corev1.Endpoints, most int) ([]*discoveryv1.EndpointSlice, leftOut) {
	var all []*discoveryv1.EndpointSlice
	var left leftOut
	for _, subset := range endpoints.Repack(e.Subsets) {
		of := map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}
		room := most
		add := func(a corev1.EndpointAddress, ready bool) {
			ip, err := netip.ParseAddr(a.IP)
			if err != nil {
				left.invalid++
				return
			}
			if room == 0 {
				left.many++
				return
			}
			room--
			family := discoveryv1.AddressTypeIPv4
			if ip = ip.Unmap(); ip.Is6() {
				family = discoveryv1.AddressTypeIPv6
			}
			if of[family] == nil {
				of[family] = newSlice(e, family, portsOf(subset.Ports))
			}
			of[family].Endpoints = append(of[family].Endpoints, endpointOf(a, ip, ready))
		}
		for _, a := range subset.Addresses {
			add(a, true)
		}
		for _, a := range subset.NotReadyAddresses {
			add(a, false)
		}
		for _, family := range slices.Sorted(maps.Keys(of)) {
			all = append(all, of[family])
		}
	}
	return all, left
}

func endpointOf(a corev1.EndpointAddress, ip netip.Addr, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		e.Hostname = &a.Hostname
	}
	return e
}

func portsOf(all []corev1.EndpointPort) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for _, p := range all {
		ports = append(ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol})
	}
	return ports
}

func newSlice(e *corev1.Endpoints, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: nameOf(e, family, ports), Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(e, corev1.SchemeGroupVersion.WithKind("Endpoints"))},
		},
		AddressType: family, Ports: ports,
	}
	maps.Copy(s.Labels, e.Labels)
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, manager
	maps.Copy(s.Annotations, e.Annotations)
	// The one is of the object's own changes, the other how a user wrote it.
	delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	return s
}

func nameOf(e *corev1.Endpoints, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\n%s\n%s", e.UID, family, controller.PortsKey(ports))
	suffix := fmt.Sprintf("-%016x", h.Sum64())
	return e.Name[:min(len(e.Name), maxName-len(suffix))] + suffix
}

// plan is what is to be done to slices.
type plan struct{ create, update, remove []*discoveryv1.EndpointSlice }

// first is the part of a plan that is n writes at most.
func (p plan) first(n int) plan {
	for _, part := range []*[]*discoveryv1.EndpointSlice{&p.create, &p.update, &p.remove} {
		*part = (*part)[:min(n, len(*part))]
		n -= len(*part)
	}
	return p
}

// planned is how what there is becomes what is wanted. A slice of the same ports and family is changed, not replaced:
// clients take what is gone for an endpoint that is.
func planned(e *corev1.Endpoints, has, want []*discoveryv1.EndpointSlice) plan {
	var p plan
	has = slices.Clone(has)
	slices.SortFunc(has, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	has = slices.DeleteFunc(has, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil })
	// Anybody may have made thousands of slices with these labels, of thousands of ports each: those are read once.
	by := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range has {
		if len(want) > 0 && metav1.IsControlledBy(s, e) {
			key := string(s.AddressType) + controller.PortsKey(s.Ports)
			by[key] = append(by[key], s)
		}
	}
	used := map[*discoveryv1.EndpointSlice]bool{}
	for _, w := range want {
		key := string(w.AddressType) + controller.PortsKey(w.Ports)
		same := by[key]
		if len(same) == 0 {
			p.create = append(p.create, w)
			continue
		}
		is := same[0]
		by[key], used[is] = same[1:], true
		if !alike(is, w) {
			next := is.DeepCopy()
			next.Labels, next.Annotations, next.Endpoints, next.Ports, next.OwnerReferences = w.Labels, w.Annotations, w.Endpoints, w.Ports, w.OwnerReferences
			p.update = append(p.update, next)
		}
	}
	p.remove = slices.DeleteFunc(has, func(s *discoveryv1.EndpointSlice) bool { return used[s] })
	return p
}

func alike(a, b *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
}
