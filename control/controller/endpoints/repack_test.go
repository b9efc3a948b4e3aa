package endpoints

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestProducts has many addresses have many ports: what they cost is their sum, and not their product.
func TestProducts(t *testing.T) {
	const pods, ports = 1000, 1000
	var addresses []corev1.EndpointAddress
	var numbers []corev1.EndpointPort
	service := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	var all []*corev1.Pod
	for i := range pods {
		ip := fmt.Sprintf("10.1.%d.%d", i/250, i%250)
		addresses = append(addresses, corev1.EndpointAddress{IP: ip})
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i))}}
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		all = append(all, p)
	}
	for i := range ports {
		numbers = append(numbers, corev1.EndpointPort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprint("p", i), Port: int32(i + 1), TargetPort: intstr.FromInt32(int32(i + 1)),
		})
	}
	// Each address is in two subsets, and has the ports of both.
	given := []corev1.EndpointSubset{
		{Addresses: addresses, Ports: numbers[:ports/2]}, {NotReadyAddresses: addresses, Ports: numbers[ports/2:]},
	}
	for name, look := range map[string]func() []corev1.EndpointSubset{
		"given": func() []corev1.EndpointSubset { return Repack(given) },
		"pods":  func() []corev1.EndpointSubset { return Repack(subsets(service, all)) },
	} {
		if n := testing.AllocsPerRun(1, func() {
			if got := look(); len(got) != 1 || len(got[0].Addresses) != pods || len(got[0].Ports) != ports {
				t.Errorf("%s: they are %d", name, len(got))
			}
		}); n > 20*(pods+ports) {
			t.Errorf("%s: it costs %.0f allocations", name, n)
		}
	}
}

// TestManyPorts has each address be in a subset of many ports, and in one that nobody else is in: what is told of them
// is bounded.
func TestManyPorts(t *testing.T) {
	const n = 2000
	var given []corev1.EndpointSubset
	big := corev1.EndpointSubset{}
	for i := range n {
		a := corev1.EndpointAddress{IP: fmt.Sprintf("10.1.%d.%d", i/250, i%250)}
		big.Addresses = append(big.Addresses, a)
		big.Ports = append(big.Ports, corev1.EndpointPort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
		given = append(given, corev1.EndpointSubset{
			Addresses: []corev1.EndpointAddress{a}, Ports: []corev1.EndpointPort{{Name: fmt.Sprint("q", i), Port: int32(i + 1)}},
		})
	}
	got, told := Repack(append(given, big)), 0
	for _, s := range got {
		told += len(s.Ports)
	}
	if told == 0 || told > MostPorts {
		t.Errorf("%d ports are told of", told)
	}
}
