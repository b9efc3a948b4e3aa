package endpoints

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/endpointslice"
	sliceutil "k8s.io/endpointslice/util"
)

// subsetsOf are the endpoints of a service, one for each pod and port.
func subsetsOf(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	var all []corev1.EndpointSubset
	for _, p := range pods {
		if !sliceutil.ShouldPodBeInEndpoints(p, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(service, p)
		if !ok {
			continue
		}
		add := func(ports []corev1.EndpointPort) {
			s := corev1.EndpointSubset{Ports: ports}
			if service.Spec.PublishNotReadyAddresses || sliceutil.IsPodReady(p) {
				s.Addresses = []corev1.EndpointAddress{address}
			} else {
				s.NotReadyAddresses = []corev1.EndpointAddress{address}
			}
			all = append(all, s)
		}
		if len(service.Spec.Ports) == 0 && service.Spec.ClusterIP == corev1.ClusterIPNone {
			add(nil)
		}
		for i := range service.Spec.Ports {
			port := &service.Spec.Ports[i]
			if number, err := endpointslice.FindPort(p, port); err == nil {
				add([]corev1.EndpointPort{{Name: port.Name, Port: int32(number), Protocol: port.Protocol, AppProtocol: port.AppProtocol}})
			}
		}
	}
	return all
}

// addressOf is the address of a pod in the family that the service has first.
func addressOf(service *corev1.Service, p *corev1.Pod) (corev1.EndpointAddress, bool) {
	ip := ""
	for _, candidate := range podIPs(p) {
		a, err := netip.ParseAddr(candidate)
		if err == nil && (len(service.Spec.IPFamilies) == 0 || a.Is6() == (service.Spec.IPFamilies[0] == corev1.IPv6Protocol)) {
			ip = candidate
			break
		}
	}
	if ip == "" {
		return corev1.EndpointAddress{}, false
	}
	a := corev1.EndpointAddress{
		IP: ip, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
	}
	if p.Spec.NodeName != "" {
		a.NodeName = &p.Spec.NodeName
	}
	if sliceutil.ShouldSetHostname(p, service) {
		a.Hostname = p.Spec.Hostname
	}
	return a, true
}

func podIPs(p *corev1.Pod) []string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	if len(all) == 0 && p.Status.PodIP != "" {
		all = []string{p.Status.PodIP}
	}
	return all
}

// who is an address as endpoints tell them apart: a pod that took the address of another is not the same.
type who struct {
	ip  string
	uid types.UID
}

// reachable is where one address is reached.
type reachable struct {
	address  corev1.EndpointAddress
	ready    bool
	ports    map[string]corev1.EndpointPort
	portless bool // it is told of without ports
}

// Repack is the shortest way to say the same: addresses with the same ports are in one subset, each once, in an order
// that does not depend on that of what is given. An address that is ready anywhere is.
func Repack(subsets []corev1.EndpointSubset) []corev1.EndpointSubset {
	known := map[who]*reachable{}
	add := func(a corev1.EndpointAddress, ports []corev1.EndpointPort, ready bool) {
		key := who{ip: a.IP}
		if a.TargetRef != nil {
			key.uid = a.TargetRef.UID
		}
		r := known[key]
		if r == nil {
			r = &reachable{address: a, ports: map[string]corev1.EndpointPort{}}
			known[key] = r
		}
		r.ready = r.ready || ready
		r.portless = r.portless || len(ports) == 0
		for _, p := range ports {
			r.ports[portKey(p)] = p
		}
	}
	for _, s := range subsets {
		for _, a := range s.Addresses {
			add(a, s.Ports, true)
		}
		for _, a := range s.NotReadyAddresses {
			add(a, s.Ports, false)
		}
	}
	groups := map[string]*corev1.EndpointSubset{}
	for _, r := range known {
		if r.portless && len(r.ports) > 0 {
			r.portless = false // the ports say more
		}
		put(groups, r)
	}
	return ordered(groups)
}

func put(groups map[string]*corev1.EndpointSubset, r *reachable) {
	var keys []string
	for key := range r.ports {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	key := strings.Join(keys, "\n")
	g := groups[key]
	if g == nil {
		g = &corev1.EndpointSubset{}
		for _, k := range keys {
			g.Ports = append(g.Ports, r.ports[k])
		}
		groups[key] = g
	}
	if r.ready {
		g.Addresses = append(g.Addresses, r.address)
	} else {
		g.NotReadyAddresses = append(g.NotReadyAddresses, r.address)
	}
}

func ordered(groups map[string]*corev1.EndpointSubset) []corev1.EndpointSubset {
	var keys []string
	for key := range groups {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var all []corev1.EndpointSubset
	for _, key := range keys {
		slices.SortFunc(groups[key].Addresses, byAddress)
		slices.SortFunc(groups[key].NotReadyAddresses, byAddress)
		all = append(all, *groups[key])
	}
	return all
}

func byAddress(a, b corev1.EndpointAddress) int {
	uid := func(a corev1.EndpointAddress) types.UID {
		if a.TargetRef == nil {
			return ""
		}
		return a.TargetRef.UID
	}
	return cmp.Or(cmp.Compare(a.IP, b.IP), cmp.Compare(uid(a), uid(b)))
}

func portKey(p corev1.EndpointPort) string {
	app := ""
	if p.AppProtocol != nil {
		app = "/" + *p.AppProtocol
	}
	return fmt.Sprintf("%s/%s/%05d%s", p.Name, p.Protocol, p.Port, app)
}

// limit has subsets be of so many addresses at most, those that are ready before those that are not, and of each subset
// its share. It returns whether any are left out.
func limit(subsets []corev1.EndpointSubset, most int) bool {
	ready, unready := 0, 0
	for _, s := range subsets {
		ready += len(s.Addresses)
		unready += len(s.NotReadyAddresses)
	}
	if ready+unready <= most {
		return false
	}
	leftReady := most
	leftUnready := max(0, most-ready)
	for i := range subsets {
		s := &subsets[i]
		n := share(len(s.Addresses), ready, most)
		n = min(n, leftReady)
		s.Addresses = s.Addresses[:n:n]
		leftReady -= n
		n = min(share(len(s.NotReadyAddresses), unready, max(0, most-ready)), leftUnready)
		s.NotReadyAddresses = s.NotReadyAddresses[:n:n]
		leftUnready -= n
	}
	return true
}

// share is what a part that has n of all gets of what there is, rounded up.
func share(n, all, of int) int {
	if all <= of {
		return n
	}
	return (n*of + all - 1) / all
}
