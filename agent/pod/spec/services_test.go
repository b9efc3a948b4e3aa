package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

func service(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: ports},
	}
}

// served is what an API server has told of Services.
func served(services ...*corev1.Service) *object.Store {
	s := new(object.Stores).Of(desired.API)
	for _, o := range services {
		s.Put(object.RefTo(object.Service, o.Namespace, o.Name), o)
	}
	return s
}

func bare(pod *corev1.Pod) Input {
	return Input{Pod: pod, Container: &pod.Spec.Containers[0], Node: testNode()}
}

func said(e *environment) string {
	var out []string
	for _, n := range slices.Sorted(maps.Keys(e.values)) {
		out = append(out, n+"="+e.values[n])
	}
	return strings.Join(out, "\n")
}

const masterVars = `KUBERNETES_PORT=tcp://10.96.0.1:443
KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443
KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1
KUBERNETES_PORT_443_TCP_PORT=443
KUBERNETES_PORT_443_TCP_PROTO=tcp
KUBERNETES_SERVICE_HOST=10.96.0.1
KUBERNETES_SERVICE_PORT=443
KUBERNETES_SERVICE_PORT_HTTPS=443`

func master() *corev1.Service {
	return service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP})
}

// TestServices wants the variables that kubelet makes, and no others.
func TestServices(t *testing.T) {
	dns := service("team", "my-dns", "fd00::a", corev1.ServicePort{Name: "dns-udp", Port: 53, Protocol: corev1.ProtocolUDP}, corev1.ServicePort{Port: 9153})
	in := bare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "team"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}})
	in.Objects = served(master(), dns, service("team", "headless", "None", corev1.ServicePort{Port: 1}), service("team", "external", ""),
		service("team", "no-ports", "10.96.0.7"), service("other", "far", "10.96.0.8", corev1.ServicePort{Port: 1}),
		service("default", "near", "10.96.0.9", corev1.ServicePort{Port: 1}))
	const links = `
MY_DNS_PORT=udp://[fd00::a]:53
MY_DNS_PORT_53_UDP=udp://[fd00::a]:53
MY_DNS_PORT_53_UDP_ADDR=fd00::a
MY_DNS_PORT_53_UDP_PORT=53
MY_DNS_PORT_53_UDP_PROTO=udp
MY_DNS_PORT_9153_TCP=tcp://[fd00::a]:9153
MY_DNS_PORT_9153_TCP_ADDR=fd00::a
MY_DNS_PORT_9153_TCP_PORT=9153
MY_DNS_PORT_9153_TCP_PROTO=tcp
MY_DNS_SERVICE_HOST=fd00::a
MY_DNS_SERVICE_PORT=53
MY_DNS_SERVICE_PORT_DNS_UDP=53`
	want := func(text string) {
		t.Helper()
		e, err := env(&in)
		if err != nil {
			t.Fatal(err)
		}
		if got := said(e); got != text {
			t.Errorf("got\n%s\nwant\n%s", got, text)
		}
	}
	want(masterVars + links)
	in.Pod.Spec.EnableServiceLinks = new(false)
	want(masterVars)
	// What the container says counts, and may refer to them.
	in.Container.Env = []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "mine"}, {Name: "AT", Value: "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"}}
	e, err := env(&in)
	if err != nil || e.values["AT"] != "mine:443" || e.values["KUBERNETES_SERVICE_HOST"] != "mine" {
		t.Errorf("%v, %v", e, err)
	}
}

// TestServicesUnknown wants a pod of an API server to wait until all Services are known, and a static one to have none.
func TestServicesUnknown(t *testing.T) {
	var all object.Stores
	in := bare(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}})
	in.Objects = all.Of(desired.API)
	all.Of(desired.API).Expect(object.Service)
	if _, err := env(&in); err == nil {
		t.Error("it does not wait")
	}
	all.Of(desired.API).Listed(object.Service)
	if _, err := env(&in); err != nil {
		t.Errorf("it waits: %v", err)
	}
	all.Of(desired.API).Put(object.RefTo(object.Service, "default", "kubernetes"), master())
	in.Objects = all.Of(desired.File)
	if e, err := env(&in); err != nil || len(e.values) != 0 {
		t.Errorf("a static pod: %v, %v", e, err)
	}
}

// TestHostileServices wants names that no API server takes to become no variables, and many Services no harm.
func TestHostileServices(t *testing.T) {
	var all []*corev1.Service
	for _, name := range []string{"a=b", "a b", "$(id)", "a\nPATH=/evil", "a\x00b", "`x`", "", ".", "LD_PRELOAD", "ä", strings.Repeat("a", 300)} {
		all = append(all, service("default", name, "10.0.0.1", corev1.ServicePort{Name: name, Port: 1}))
	}
	all = append(all, service("default", "good", "10.0.0.1", corev1.ServicePort{Name: "a\nPATH=/evil", Port: 1}))
	e := serviceVars(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, served(all...))
	for name := range e {
		if !strings.HasPrefix(name, "GOOD_") || strings.ContainsAny(name, "\n= ") {
			t.Errorf("there is %q", name)
		}
	}
	all = nil
	for i := range 10_000 {
		all = append(all, service("default", fmt.Sprint("s-", i), "10.0.0.1", corev1.ServicePort{Port: 1}))
	}
	if n := len(serviceVars(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}, served(all...))); n != 70_000 {
		t.Errorf("%d variables", n)
	}
}
