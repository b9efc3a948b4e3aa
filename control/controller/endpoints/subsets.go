package endpoints

import (
	"encoding/binary"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/endpointslice"
	sliceutil "k8s.io/endpointslice/util"
)

// subsetsOf are the endpoints of a service: pods with the same ports are in one subset. A service may have ten thousand
// ports and a thousand pods, and their product is nowhere.
func subsetsOf(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	var all []corev1.EndpointSubset
	known := map[string]int{} // the subsets, by the numbers of their ports
	var numbers []byte
	for _, p := range pods {
		if !sliceutil.ShouldPodBeInEndpoints(p, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(service, p)
		if !ok {
			continue
		}
		var has bool
		numbers, has = numbersOf(service, p, numbers[:0])
		if !has && (len(service.Spec.Ports) > 0 || service.Spec.ClusterIP != corev1.ClusterIPNone) {
			continue
		}
		i, is := known[string(numbers)]
		if !is {
			i = len(all)
			known[string(numbers)] = i
			all = append(all, corev1.EndpointSubset{Ports: portsOf(service, numbers)})
		}
		if service.Spec.PublishNotReadyAddresses || sliceutil.IsPodReady(p) {
			all[i].Addresses = append(all[i].Addresses, address)
		} else {
			all[i].NotReadyAddresses = append(all[i].NotReadyAddresses, address)
		}
	}
	return all
}

// numbersOf adds the number that each port of a service has in a pod, zero where it has none, and says whether it has
// any.
func numbersOf(service *corev1.Service, p *corev1.Pod, numbers []byte) ([]byte, bool) {
	has := false
	for i := range service.Spec.Ports {
		number, err := endpointslice.FindPort(p, &service.Spec.Ports[i])
		if err != nil {
			number = 0
		}
		has = has || err == nil
		numbers = binary.LittleEndian.AppendUint32(numbers, uint32(number))
	}
	return numbers, has
}

func portsOf(service *corev1.Service, numbers []byte) []corev1.EndpointPort {
	var ports []corev1.EndpointPort
	for i, port := range service.Spec.Ports {
		if number := binary.LittleEndian.Uint32(numbers[4*i:]); number != 0 {
			ports = append(ports, corev1.EndpointPort{Name: port.Name, Port: int32(number), Protocol: port.Protocol, AppProtocol: port.AppProtocol})
		}
	}
	return ports
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
