package registry

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// TestTypeOfService changes the type of a service and sends the rest back as it was, as clients do: what the new type
// does not have goes. What is changed with it stays, for validation to refuse.
func TestTypeOfService(t *testing.T) {
	balanced := corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		Ports:                 []corev1.ServicePort{{Port: 80, NodePort: 30001}},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30002,
		AllocateLoadBalancerNodePorts: new(true), LoadBalancerClass: new("example.com/class"),
	}
	inside := *balanced.DeepCopy()
	inside.Type, inside.Ports[0].NodePort, inside.HealthCheckNodePort = corev1.ServiceTypeClusterIP, 0, 0
	inside.ExternalTrafficPolicy, inside.AllocateLoadBalancerNodePorts, inside.LoadBalancerClass = "", nil, nil
	onNodes := *inside.DeepCopy()
	onNodes.Type, onNodes.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30001
	onNodes.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	named := *inside.DeepCopy()
	named.Type, named.ClusterIP, named.ClusterIPs = corev1.ServiceTypeExternalName, "", nil
	named.IPFamilies, named.IPFamilyPolicy = nil, nil
	addressed := *inside.DeepCopy()
	addressed.ExternalIPs, addressed.ExternalTrafficPolicy = []string{"192.0.2.1"}, corev1.ServiceExternalTrafficPolicyCluster
	for _, c := range []struct {
		from corev1.ServiceSpec
		to   func(s *corev1.ServiceSpec)
		want corev1.ServiceSpec
	}{
		{balanced, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeClusterIP }, inside},
		{balanced, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort }, onNodes},
		{balanced, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName }, named},
		{onNodes, func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName }, named},
		{addressed, func(s *corev1.ServiceSpec) { s.ExternalIPs = nil }, inside},
		{addressed, func(*corev1.ServiceSpec) {}, addressed},
	} {
		old, svc := &corev1.Service{Spec: c.from}, &corev1.Service{Spec: *c.from.DeepCopy()}
		c.to(&svc.Spec)
		keepAllocated(svc, old)
		dropOfType(svc, old)
		if !equality.Semantic.DeepEqual(svc.Spec, c.want) {
			t.Errorf("of %s there is %+v, want %+v", old.Spec.Type, svc.Spec, c.want)
		}
	}
	old, svc := &corev1.Service{Spec: onNodes}, &corev1.Service{Spec: *onNodes.DeepCopy()}
	svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeClusterIP, corev1.ServiceExternalTrafficPolicyCluster
	dropOfType(svc, old)
	if svc.Spec.ExternalTrafficPolicy == "" {
		t.Error("a policy that the client has set is dropped")
	}
}
