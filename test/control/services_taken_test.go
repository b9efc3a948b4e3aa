package control

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// taking makes services in a cluster with few addresses.
type taking struct {
	*plane
	t *testing.T
}

func (s taking) try(name string, spec corev1.ServiceSpec, dry ...string) (*corev1.Service, error) {
	if spec.Ports == nil {
		spec.Ports = []corev1.ServicePort{{Port: 80}}
	}
	return s.client.CoreV1().Services("default").Create(s.t.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{DryRun: dry})
}

func (s taking) make(name string, spec corev1.ServiceSpec) *corev1.Service {
	s.t.Helper()
	o, err := s.try(name, spec)
	if err != nil {
		s.t.Fatalf("make %s: %v", name, err)
	}
	return o
}

func (s taking) remove(name string) {
	s.t.Helper()
	if err := s.client.CoreV1().Services("default").Delete(s.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// refused holds that something is not given, for a reason.
func (s taking) refused(what string, err error, why string) {
	s.t.Helper()
	if err == nil || !strings.Contains(err.Error(), why) {
		s.t.Errorf("%s: %v; it is to be refused since %s", what, err, why)
	}
}

func (s taking) addresses() int {
	s.t.Helper()
	all, err := s.client.NetworkingV1().IPAddresses().List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return len(all.Items)
}

// TestServicesTaken has services ask for what others have, in every way that there is to write it, and for more than
// there is: nobody loses what is theirs, and what is given back another has at once.
func TestServicesTaken(t *testing.T) {
	t.Parallel()
	s := taking{startAt(t, t.TempDir(), "0", "--service-cidr=10.96.0.0/28,fd00::/112"), t}
	const taken, used = "provided IP is already allocated", "provided port is already allocated"
	before := s.addresses()
	written := s.make("written", corev1.ServiceSpec{ClusterIP: "FD00::0:9"})
	if written.Spec.ClusterIP != "FD00::0:9" {
		t.Errorf("the address is %s", written.Spec.ClusterIP)
	}
	_, err := s.try("again", corev1.ServiceSpec{ClusterIP: "fd00::9"})
	s.refused("an address in another way", err, taken)
	s.make("zeros", corev1.ServiceSpec{ClusterIP: "010.96.0.009"})
	_, err = s.try("again", corev1.ServiceSpec{ClusterIP: "10.96.0.9"})
	s.refused("an address without zeros", err, taken)
	_, err = s.try("again", corev1.ServiceSpec{ClusterIP: "192.0.2.1"})
	s.refused("an address of no range", err, "failed to allocate IP 192.0.2.1: the provided network does not match the current range")
	s.remove("written")
	s.remove("zeros")
	if got := s.addresses(); got != before {
		t.Errorf("of the addresses %d are left", got-before)
	}
	s.single(before)
	s.stolen(taken)
	s.ports(used)
	for i := range 14 {
		if _, err = s.try(fmt.Sprint("full", i), corev1.ServiceSpec{}); err != nil {
			break
		}
	}
	s.refused("more addresses than there are", err, "failed to allocate a serviceIP: range is full")
	s.remove("full0")
	s.make("room", corev1.ServiceSpec{})
	s.stop(t)
}

// single has a service of two families become one of one: the second address is given back.
func (s taking) single(before int) {
	s.t.Helper()
	o := s.make("both", corev1.ServiceSpec{IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack)})
	if len(o.Spec.ClusterIPs) != 2 || s.addresses() != before+2 {
		s.t.Fatalf("the service of two families has %v", o.Spec.ClusterIPs)
	}
	first := o.Spec.ClusterIP
	o.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	o, err := s.client.CoreV1().Services("default").Update(s.t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(o.Spec.ClusterIPs) != 1 || o.Spec.ClusterIP != first || len(o.Spec.IPFamilies) != 1 || s.addresses() != before+1 {
		s.t.Errorf("of one family it has %v and %v", o.Spec.ClusterIPs, o.Spec.IPFamilies)
	}
	s.remove("both")
}

// stolen takes an address whose object somebody has deleted: whose it is then keeps it when the first one goes.
func (s taking) stolen(taken string) {
	s.t.Helper()
	const ip = "10.96.0.11"
	s.make("first", corev1.ServiceSpec{ClusterIP: ip})
	if err := s.client.NetworkingV1().IPAddresses().Delete(s.t.Context(), ip, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
	s.make("second", corev1.ServiceSpec{ClusterIP: ip})
	s.remove("first")
	_, err := s.try("third", corev1.ServiceSpec{ClusterIP: ip})
	s.refused("the address of one of two that had it", err, taken)
	s.remove("second")
}

// ports has services ask for ports of others, by all types, and change their types in circles.
func (s taking) ports(used string) {
	s.t.Helper()
	all := s.client.CoreV1().Services("default")
	on := func(node int32) []corev1.ServicePort { return []corev1.ServicePort{{Port: 80, NodePort: node}} }
	s.make("victim", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: on(30007)})
	named := s.make("named", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: on(30007)})
	named.Spec.Type = corev1.ServiceTypeNodePort
	_, err := all.Update(s.t.Context(), named, metav1.UpdateOptions{})
	s.refused("a port that an ExternalName says", err, used)
	s.remove("named")
	_, err = s.try("other", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: on(30007)})
	s.refused("a port that an ExternalName has said", err, used)
	health := corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: on(30008), HealthCheckNodePort: 30008,
	}
	_, err = s.try("health", health)
	s.refused("one port for two", err, used)
	var many []corev1.ServicePort
	for i := range int32(2768) {
		many = append(many, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: i + 1})
	}
	_, err = s.try("many", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: many})
	s.refused("more ports than there are", err, "failed to allocate a nodePort: range is full")
	health.HealthCheckNodePort = 30009
	if _, err := s.try("health", health, metav1.DryRunAll); err != nil {
		s.t.Errorf("a service that is not made: %v", err)
	}
	o := s.make("circle", health)
	for range 5 {
		for _, to := range []corev1.ServiceType{corev1.ServiceTypeExternalName, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer} {
			o.Spec.Type = to
			if to == corev1.ServiceTypeExternalName {
				o.Spec.ExternalName = "example.com"
			}
			if to == corev1.ServiceTypeLoadBalancer {
				o.Spec.Ports, o.Spec.HealthCheckNodePort, o.Spec.ExternalTrafficPolicy = on(30008), 30009, health.ExternalTrafficPolicy
			}
			if o, err = all.Update(s.t.Context(), o, metav1.UpdateOptions{}); err != nil {
				s.t.Fatalf("it becomes %s: %v", to, err)
			}
		}
	}
	before := s.addresses()
	s.remove("circle")
	if got := s.addresses(); got != before-1 {
		s.t.Errorf("%d addresses are given back", before-got)
	}
	dns := s.make("dns", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{
		{Name: "a", Port: 53}, {Name: "b", Port: 53, Protocol: corev1.ProtocolUDP},
	}})
	if p := dns.Spec.Ports; p[0].NodePort == 0 || p[0].NodePort != p[1].NodePort {
		s.t.Errorf("one port of two protocols is at %d and %d of the nodes", p[0].NodePort, p[1].NodePort)
	}
	s.remove("dns")
	s.make("after", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "a", Port: 1, NodePort: 30008}, {Name: "b", Port: 2, NodePort: 30009}}})
	s.remove("after")
	s.remove("victim")
}
