package endpoints

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(name, ip string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{
			{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}},
		}},
		Status: corev1.PodStatus{
			PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}
}

func service(ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: ports}}
}

func subsets(service *corev1.Service, pods []*corev1.Pod) []corev1.EndpointSubset {
	all, _ := subsetsOf(service, pods)
	return all
}

// TestSubsets has pods be where their service finds them.
func TestSubsets(t *testing.T) {
	http := corev1.ServicePort{Name: "http", TargetPort: intstr.FromString("web"), Protocol: corev1.ProtocolTCP}
	https := corev1.ServicePort{Name: "https", TargetPort: intstr.FromInt32(8443), Protocol: corev1.ProtocolTCP}
	named := pod("p", "10.0.0.1", true)
	named.Spec.Hostname, named.Spec.Subdomain = "h", "s"
	ended, leaving := pod("e", "10.0.0.8", true), pod("l", "10.0.0.9", true)
	ended.Status.Phase = corev1.PodSucceeded
	leaving.DeletionTimestamp = &metav1.Time{}
	other := pod("o", "10.0.0.3", true)
	other.Spec.Containers[0].Ports[0].Name = "another"
	pods := []*corev1.Pod{pod("q", "10.0.0.2", false), named, other, ended, leaving}

	got := Repack(subsets(service(http, https), pods))
	if len(got) != 2 || len(got[0].Ports) != 2 || len(got[1].Ports) != 1 {
		t.Fatalf("subsets are %v", got)
	}
	if a := got[0].Addresses; len(a) != 1 || a[0].IP != "10.0.0.1" || a[0].Hostname != "h" || a[0].TargetRef.UID != "p" || *a[0].NodeName != "n" {
		t.Errorf("addresses are %v", a)
	}
	if a := got[0].NotReadyAddresses; len(a) != 1 || a[0].IP != "10.0.0.2" {
		t.Errorf("those not ready are %v", a)
	}
	if a := got[1].Addresses; len(a) != 1 || a[0].IP != "10.0.0.3" {
		t.Errorf("one without the port is not by the other: %v", a)
	}

	all := service(http)
	all.Spec.PublishNotReadyAddresses = true
	if got := Repack(subsets(all, pods)); len(got) != 1 || len(got[0].Addresses) != 3 || len(got[0].NotReadyAddresses) != 0 {
		t.Errorf("where all are published there are %v", got)
	}
	headless := service()
	if got := subsets(headless, pods); len(got) != 0 {
		t.Errorf("a service without ports has %v", got)
	}
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	if got := Repack(subsets(headless, pods)); len(got) != 1 || len(got[0].Ports) != 0 || len(got[0].Addresses) != 2 {
		t.Errorf("a headless one without ports has %v", got)
	}
	six := service(http)
	six.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	named.Status.PodIPs = append(named.Status.PodIPs, corev1.PodIP{IP: "fd00::1"})
	if got := Repack(subsets(six, pods)); len(got) != 1 || got[0].Addresses[0].IP != "fd00::1" {
		t.Errorf("one of the other family has %v", got)
	}
}

// TestRepack packs what is packed to the same, whatever the order.
func TestRepack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var all []corev1.EndpointSubset
		for range r.IntN(12) {
			s := corev1.EndpointSubset{}
			for range r.IntN(3) {
				s.Ports = append(s.Ports, corev1.EndpointPort{Port: 1 + r.Int32N(3), Protocol: corev1.ProtocolTCP})
			}
			a := corev1.EndpointAddress{IP: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[r.IntN(3)]}
			if r.IntN(2) == 0 {
				s.Addresses = append(s.Addresses, a)
			} else {
				s.NotReadyAddresses = append(s.NotReadyAddresses, a)
			}
			all = append(all, s)
		}
		packed := Repack(all)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if again := Repack(all); !equality.Semantic.DeepEqual(packed, again) || !equality.Semantic.DeepEqual(packed, Repack(packed)) {
			t.Fatalf("%v is packed to %v and %v", all, packed, again)
		}
	}
}

func TestLimit(t *testing.T) {
	addresses := func(n int) []corev1.EndpointAddress { return make([]corev1.EndpointAddress, n) }
	for _, c := range []struct {
		ready, unready         []int
		wantReady, wantUnready []int
		over                   bool
	}{
		{[]int{4, 4}, []int{1, 1}, []int{4, 4}, []int{1, 1}, false},
		{[]int{6, 6}, []int{9, 0}, []int{5, 5}, []int{0, 0}, true},
		{[]int{4, 2}, []int{8, 8}, []int{4, 2}, []int{2, 2}, true},
		{[]int{30, 0}, []int{0, 0}, []int{10, 0}, []int{0, 0}, true},
	} {
		all := make([]corev1.EndpointSubset, len(c.ready))
		for i := range all {
			all[i].Addresses, all[i].NotReadyAddresses = addresses(c.ready[i]), addresses(c.unready[i])
		}
		if over := limit(all, 10); over != c.over {
			t.Errorf("%v: over is %v", c, over)
		}
		for i, s := range all {
			if len(s.Addresses) != c.wantReady[i] || len(s.NotReadyAddresses) != c.wantUnready[i] {
				t.Errorf("%v: subset %d has %d and %d", c, i, len(s.Addresses), len(s.NotReadyAddresses))
			}
		}
	}
}

// TestPortsOfTheirOwn has a service of ten thousand ports select a thousand pods, each of which has one port of its
// own, or thousands with names: what is told, and what it takes, is of the order of the ports, not of their product.
func TestPortsOfTheirOwn(t *testing.T) {
	var ports []corev1.ServicePort
	const many, nodes = 10_000, 1000
	for i := range many {
		ports = append(ports, corev1.ServicePort{Name: fmt.Sprint(i), Port: int32(i + 1), TargetPort: intstr.FromInt32(int32(i + 1)), Protocol: corev1.ProtocolTCP})
	}
	ports[7].TargetPort = intstr.FromString("own")
	var pods []*corev1.Pod
	for i := range nodes {
		p := pod(fmt.Sprintf("%04d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250), true)
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "own", ContainerPort: int32(20_000 + i), Protocol: corev1.ProtocolTCP}}
		pods = append(pods, p)
	}
	s := service(ports...)
	count := func(all []corev1.EndpointSubset) (ports int, first string) {
		for _, s := range all {
			ports += len(s.Ports)
			if ip := s.Addresses[0].IP; first == "" || ip < first {
				first = ip
			}
		}
		return ports, first
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	n, first := count(subsets(s, pods))
	if n != MostPorts || first != "10.0.0.0" {
		t.Errorf("%d ports are told, of pods from %s", n, first)
	}
	// A pod with as many ports as the service, by their names.
	for i := range ports {
		ports[i].TargetPort = intstr.FromString(fmt.Sprint("p", i))
	}
	p := pod("p", "10.0.0.1", true)
	for i := range many {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{Name: fmt.Sprint("p", i), ContainerPort: int32(i + 1), Protocol: corev1.ProtocolTCP})
	}
	sidecar := corev1.Container{RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{
		{Name: "p5", ContainerPort: 9, Protocol: corev1.ProtocolTCP}, {Name: "p5", ContainerPort: 99, Protocol: corev1.ProtocolUDP},
	}}
	p.Spec.InitContainers = []corev1.Container{{Ports: sidecar.Ports}, sidecar}
	ports[6].TargetPort, ports[6].Protocol = intstr.FromString("p5"), corev1.ProtocolUDP
	numbers, has := Numbers(service(ports...), p, nil)
	for i := range ports {
		want := int32(i + 1)
		if i == 6 {
			want = 99
		}
		if got := Number(numbers, i); got != want || !has {
			t.Fatalf("port %d is %d", i, got)
		}
	}
}
