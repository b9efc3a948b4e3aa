package registry

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestOfOthers has services say of addresses and ports what is not theirs, or in another way than it is kept: what is
// given back is what they were given.
func TestOfOthers(t *testing.T) {
	ports := []corev1.ServicePort{{Port: 53, NodePort: 30001, Protocol: corev1.ProtocolTCP}, {Port: 53, NodePort: 30001, Protocol: corev1.ProtocolUDP}}
	for _, c := range []struct {
		spec  corev1.ServiceSpec
		ips   string
		ports string
	}{
		{corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, Ports: ports, HealthCheckNodePort: 30002}, "[]", "[]"},
		{corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports, ClusterIP: "None", ClusterIPs: []string{"None"}}, "[]", "[]"},
		{corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: ports, HealthCheckNodePort: 30002, ClusterIPs: []string{"FD00::0:a", "010.96.0.9"}}, "[fd00::a 10.96.0.9]", "[30001]"},
		{corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: ports,
			HealthCheckNodePort: 30002, ClusterIPs: []string{"10.96.0.9"},
		}, "[10.96.0.9]", "[30001 30002]"},
	} {
		s := &corev1.Service{Spec: c.spec}
		if ips, ports := fmt.Sprint(addressesOf(s)), fmt.Sprint(portsOf(s)); ips != c.ips || ports != c.ports {
			t.Errorf("a service of type %s has %s and %s, want %s and %s", s.Spec.Type, ips, ports, c.ips, c.ports)
		}
	}
}

// TestRight looks at addresses that anybody has made.
func TestRight(t *testing.T) {
	user := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}}
	ours := map[string]string{networkingv1.LabelManagedBy: allocator}
	for what, c := range map[string]struct {
		labels map[string]string
		ref    networkingv1.ParentReference
		users  []*corev1.Service
		want   bool
	}{
		"its own":              {ours, networkingv1.ParentReference{Resource: "services", Namespace: "a", Name: "s"}, []*corev1.Service{user}, true},
		"another's":            {ours, networkingv1.ParentReference{Resource: "services", Namespace: "b", Name: "s"}, []*corev1.Service{user}, false},
		"of another kind":      {nil, networkingv1.ParentReference{Group: "g", Resource: "gateways", Namespace: "a", Name: "s"}, []*corev1.Service{user}, false},
		"of one that is gone":  {ours, networkingv1.ParentReference{Resource: "services", Namespace: "a", Name: "s"}, nil, false},
		"kept free":            {nil, networkingv1.ParentReference{Resource: "services", Namespace: "a", Name: "s"}, nil, true},
		"of another, unused":   {ours, networkingv1.ParentReference{Group: "g", Resource: "gateways", Namespace: "a", Name: "s"}, nil, true},
		"of one of two of one": {ours, networkingv1.ParentReference{Resource: "services", Namespace: "a", Name: "s"}, []*corev1.Service{{}, user}, true},
	} {
		a := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}, Spec: networkingv1.IPAddressSpec{ParentRef: &c.ref}}
		if got := right(a, c.users); got != c.want {
			t.Errorf("one that is %s is right: %v", what, got)
		}
	}
}

// TestFreeIn finds the address that is left of ranges, whichever it is, and leaves out ranges that are parts of others.
func TestFreeIn(t *testing.T) {
	p, six := netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/8")
	all := []netip.Prefix{p}
	for i := range 1000 {
		all = append(all, p, netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/32", i%256)), netip.MustParsePrefix("10.0.0.64/28"))
	}
	other := netip.MustParsePrefix("10.0.1.0/24")
	if got := apart(append(all, other)); fmt.Sprint(got) != fmt.Sprint([]netip.Prefix{p, other}) {
		t.Errorf("ranges are %v", got)
	}
	for last := range 254 {
		held := map[netip.Addr]bool{}
		for i := range 254 {
			held[offset(p, uint64(i+1))] = i != last
		}
		delete(held, offset(p, uint64(last+1)))
		if ip, ok := freeIn(p, held); !ok || ip != offset(p, uint64(last+1)) {
			t.Fatalf("%s is free: %v", ip, ok)
		}
		held[offset(p, uint64(last+1))] = true
		if ip, ok := freeIn(p, held); ok {
			t.Fatalf("%s is free of none", ip)
		}
		if ip, ok := freeIn(six, held); !ok || !six.Contains(ip) {
			t.Fatalf("%s is free: %v", ip, ok)
		}
	}
}

// TestShare has ports that several protocols offer be one port of the nodes, as DNS is to be reached by both.
func TestShare(t *testing.T) {
	tcp, udp, sctp := corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
	for _, c := range []struct {
		has  []corev1.ServicePort
		want int32 // of the last
	}{
		{[]corev1.ServicePort{{Port: 53, Protocol: tcp, NodePort: 30001}, {Port: 53, Protocol: udp}}, 30001},
		{[]corev1.ServicePort{{Port: 53, Protocol: tcp}, {Port: 53, Protocol: udp, NodePort: 30001}, {Port: 53, Protocol: sctp}}, 30001},
		{[]corev1.ServicePort{{Port: 54, Protocol: tcp, NodePort: 30001}, {Port: 53, Protocol: udp}}, 0},
		{[]corev1.ServicePort{{Port: 53, Protocol: tcp, NodePort: 30001}, {Port: 54, Protocol: udp, NodePort: 30001}, {Port: 53, Protocol: udp}}, 0},
		{[]corev1.ServicePort{{Port: 53, Protocol: tcp}, {Port: 53, Protocol: udp}}, 0},
	} {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: c.has}}
		last := &s.Spec.Ports[len(c.has)-1]
		if share(s, last); last.NodePort != c.want {
			t.Errorf("of %v the last has %d, want %d", c.has, last.NodePort, c.want)
		}
	}
}
