package control

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// withoutNodes keeps nodes as a test has made them: they have no leases.
const withoutNodes = "--controllers=*,-node-lifecycle-controller"

// runs is a pod that a node says is there.
func runs(t *testing.T, c kubernetes.Interface, namespace, name, ip, node string, labels map[string]string, ready bool) {
	t.Helper()
	pods := c.CoreV1().Pods(namespace)
	p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		p, err = pods.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{
				{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}},
			}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}},
	}
	if _, err := pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// endpointsOf are the endpoints in the slices of a service, each as its address and whether it is ready.
func endpointsOf(t *testing.T, c kubernetes.Interface, namespace, name string) map[string]bool {
	t.Helper()
	all, err := c.DiscoveryV1().EndpointSlices(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, s := range all.Items {
		for _, e := range s.Endpoints {
			got[e.Addresses[0]] = e.Conditions.Ready != nil && *e.Conditions.Ready
		}
	}
	return got
}

// TestEndpoints has services find their pods, by slices and by Endpoints, while the control plane is killed, and has
// slices made of Endpoints that a user writes.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startAt(t, dir, "0", withoutNodes)
	app := map[string]string{"app": "a"}
	if _, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	port := corev1.ServicePort{Name: "http", Port: 80, TargetPort: intstr.FromString("web")}
	if _, err := p.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: app}, Spec: corev1.ServiceSpec{Selector: app, Ports: []corev1.ServicePort{port}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	agree := func(what string, want map[string]bool) {
		t.Helper()
		until(t, what, func() error {
			if got := endpointsOf(t, p.client, "default", "s"); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("slices have %v and not %v", got, want)
			}
			e, err := p.client.CoreV1().Endpoints("default").Get(t.Context(), "s", metav1.GetOptions{})
			if err != nil {
				return err
			}
			got := map[string]bool{}
			for _, s := range e.Subsets {
				for _, a := range s.Addresses {
					got[a.IP] = true
				}
				for _, a := range s.NotReadyAddresses {
					got[a.IP] = false
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("endpoints are %v and not %v", got, want)
			}
			return nil
		})
	}
	agree("a service without pods has no endpoints", map[string]bool{})
	runs(t, p.client, "default", "p", "10.0.0.1", "n", app, true)
	runs(t, p.client, "default", "q", "10.0.0.2", "n", app, false)
	runs(t, p.client, "default", "other", "10.0.0.3", "n", nil, true)
	agree("one of two is ready", map[string]bool{"10.0.0.1": true, "10.0.0.2": false})
	p.kill()
	p = startAt(t, dir, "0", withoutNodes)
	runs(t, p.client, "default", "q", "10.0.0.2", "n", app, true)
	runs(t, p.client, "default", "p", "10.0.0.1", "n", app, false)
	agree("the other one is", map[string]bool{"10.0.0.1": false, "10.0.0.2": true})

	slices, err := p.client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=s"})
	if err != nil || len(slices.Items) != 1 {
		t.Fatalf("slices are %v: %v", slices, err)
	}
	s := slices.Items[0]
	if e := s.Endpoints[0]; s.Labels["app"] != "a" || *s.Ports[0].Port != 8080 || e.Zone == nil || *e.Zone != "z" || *e.NodeName != "n" || e.TargetRef.Kind != "Pod" {
		t.Errorf("the slice is %v", s)
	}
	if err := p.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	agree("a slice that somebody deletes is made again", map[string]bool{"10.0.0.1": false, "10.0.0.2": true})
	p.mirrors(t)
	if err := p.client.CoreV1().Services("default").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "endpoints go with their service", func() error {
		_, err := p.client.CoreV1().Endpoints("default").Get(t.Context(), "s", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("they are there"), err)
	})
	p.stop(t)
}

// mirrors has slices made of what a user writes.
func (p *plane) mirrors(t *testing.T) {
	t.Helper()
	if _, err := p.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "own"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all := p.client.CoreV1().Endpoints("default")
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // users have them
		Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Port: 80}},
	}}}
	e, err := all.Create(t.Context(), e, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := func(want string) {
		t.Helper()
		until(t, "slices are "+want, func() error {
			if got := fmt.Sprint(endpointsOf(t, p.client, "default", "own")); got != want {
				return fmt.Errorf("they are %s", got)
			}
			return nil
		})
	}
	has("map[192.0.2.1:true]")
	e.Subsets[0].Addresses = []corev1.EndpointAddress{{IP: "192.0.2.2"}}
	if _, err := all.Update(t.Context(), e, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	has("map[192.0.2.2:true]")
	if err := all.Delete(t.Context(), "own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("map[]")
}
