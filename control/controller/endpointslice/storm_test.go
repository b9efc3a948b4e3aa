package endpointslice

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/tools/record"
)

// holding is a client that does not come to an end with slices of one namespace.
type holding struct {
	kubernetes.Interface
	end        <-chan struct{}
	held, calm chan string
}

// DiscoveryV1 implements [kubernetes.Interface].
func (h holding) DiscoveryV1() typeddiscoveryv1.DiscoveryV1Interface {
	return holdingGroup{h.Interface.DiscoveryV1(), h}
}

type holdingGroup struct {
	typeddiscoveryv1.DiscoveryV1Interface
	of holding
}

// EndpointSlices implements [typeddiscoveryv1.DiscoveryV1Interface].
func (g holdingGroup) EndpointSlices(namespace string) typeddiscoveryv1.EndpointSliceInterface {
	return holdingSlices{g.DiscoveryV1Interface.EndpointSlices(namespace), g.of}
}

type holdingSlices struct {
	typeddiscoveryv1.EndpointSliceInterface
	of holding
}

// Create implements [typeddiscoveryv1.EndpointSliceInterface].
func (s holdingSlices) Create(_ context.Context, o *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	of := o.Labels[discoveryv1.LabelServiceName]
	if o.Namespace == "calm" {
		s.of.calm <- of
		return o, nil
	}
	s.of.held <- of
	<-s.of.end
	return o, nil
}

// TestStorm has a namespace with a thousand services, all of which select one pod, be so slow that none of its slices
// is ever written: the service of another one has its slice.
func TestStorm(t *testing.T) {
	const many = 1000
	ctx, cancel := context.WithCancel(t.Context())
	clients := fake.NewClientset()
	client := holding{clients, ctx.Done(), make(chan string, many), make(chan string, 1)}
	labels := map[string]string{"app": "a"}
	add := func(namespace, name string) {
		t.Helper()
		s := service(corev1.ServicePort{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP})
		s.Namespace, s.Name, s.Spec.Selector = namespace, name, labels
		if err := clients.Tracker().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		add("storm", fmt.Sprint("s", i))
	}
	p := pod(1)
	p.Namespace, p.Labels = "storm", labels
	if err := clients.Tracker().Add(p); err != nil {
		t.Fatal(err)
	}
	all := informers.NewSharedInformerFactory(clients, 0)
	c, err := New(Deps{
		Client: client, Core: all.Core().V1(), Services: all.Core().V1().Services(), Slices: all.Discovery().V1().EndpointSlices(),
		Events: record.NewFakeRecorder(many), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	all.StartWithContext(ctx)
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	for range workers - 1 {
		<-client.held
	}
	s := service(corev1.ServicePort{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP})
	s.Namespace, s.Name, s.Spec.Selector = "calm", "quick", labels
	if _, err := client.CoreV1().Services("calm").Create(ctx, s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := <-client.calm; got != "quick" {
		t.Errorf("the slice is of %s", got)
	}
	if len(client.held) > 0 {
		t.Errorf("%d more services of the other namespace are looked at", len(client.held))
	}
	cancel()
	<-ended
}
