package endpoints

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	sliceutil "k8s.io/endpointslice/util"
)

// subsetsOf are the endpoints of a service: pods with the same ports are in one subset. A service may have ten thousand
// ports and a thousand pods, and their product is nowhere: where each pod has ports of its own, those of [MostPorts] at
// most are told, the pods that come first by name, and it is not the whole.
func subsetsOf(service *corev1.Service, pods []*corev1.Pod) (all []corev1.EndpointSubset, whole bool) {
	all, whole = grouped(service, pods)
	if !whole {
		all, _ = grouped(service, ByName(pods))
	}
	return all, whole
}

// ByName are pods in an order by which the same ones are left out each time, where some are.
func ByName(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
}

// grouped has pods with the same ports be together, and says whether all pods are there.
func grouped(service *corev1.Service, pods []*corev1.Pod) (all []corev1.EndpointSubset, whole bool) {
	known := map[string]int{} // the subsets, by the numbers of their ports
	var numbers []byte
	left := MostPorts
	whole = true
	for _, p := range pods {
		if !sliceutil.ShouldPodBeInEndpoints(p, service.Spec.PublishNotReadyAddresses) {
			continue
		}
		address, ok := addressOf(service, p)
		if !ok {
			continue
		}
		var has bool
		numbers, has = Numbers(service, p, numbers[:0])
		if !has && (len(service.Spec.Ports) > 0 || service.Spec.ClusterIP != corev1.ClusterIPNone) {
			continue
		}
		at, is := known[string(numbers)]
		if !is {
			if left < len(service.Spec.Ports) {
				whole = false
				continue
			}
			left -= len(service.Spec.Ports)
			at = len(all)
			known[string(numbers)] = at
			all = append(all, corev1.EndpointSubset{Ports: portsOf(service, numbers)})
		}
		if service.Spec.PublishNotReadyAddresses || sliceutil.IsPodReady(p) {
			all[at].Addresses = append(all[at].Addresses, address)
		} else {
			all[at].NotReadyAddresses = append(all[at].NotReadyAddresses, address)
		}
	}
	return all, whole
}

// Numbers adds the number that each port of a service has in a pod, zero where it has none, and says whether it has
// any. The names of the pod's ports are read once: both may have thousands.
func Numbers(service *corev1.Service, p *corev1.Pod, numbers []byte) ([]byte, bool) {
	has := false
	var named map[namedPort]int32
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		number := port.TargetPort.IntVal
		is := port.TargetPort.Type == intstr.Int
		if !is {
			if named == nil {
				named = namedPorts(p)
			}
			number, is = named[namedPort{port.TargetPort.StrVal, port.Protocol}]
		}
		has = has || is
		numbers = binary.LittleEndian.AppendUint32(numbers, uint32(number))
	}
	return numbers, has
}

// Number is the one of those that [Numbers] has added.
func Number(numbers []byte, i int) int32 { return int32(binary.LittleEndian.Uint32(numbers[4*i:])) }

type namedPort struct {
	name     string
	protocol corev1.Protocol
}

// namedPorts are the ports of a pod that have names: of its containers, and of those that run beside them from the
// beginning. Of several of one name the first counts.
func namedPorts(p *corev1.Pod) map[namedPort]int32 {
	all := map[namedPort]int32{}
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			key := namedPort{port.Name, port.Protocol}
			if _, is := all[key]; !is {
				all[key] = port.ContainerPort
			}
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return all
}

func portsOf(service *corev1.Service, numbers []byte) []corev1.EndpointPort {
	var ports []corev1.EndpointPort
	for i, port := range service.Spec.Ports {
		if number := Number(numbers, i); number != 0 {
			ports = append(ports, corev1.EndpointPort{Name: port.Name, Port: number, Protocol: port.Protocol, AppProtocol: port.AppProtocol})
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
