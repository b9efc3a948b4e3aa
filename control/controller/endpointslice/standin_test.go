package endpointslice

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	sliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/berth-node/berth/control/controller/endpoints"

	"github.com/berth-node/berth/control/controller"
)

var key = cache.ObjectName{Namespace: "a", Name: "s"}

// named is a client that gives objects names, as the API does.
func named() *fake.Clientset {
	client, n := fake.NewClientset(), 0
	client.PrependReactor("create", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s, _ := a.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
		n++
		s.Name = fmt.Sprint(s.GenerateName, n)
		return false, nil, nil
	})
	return client
}

func made(t *testing.T, client *fake.Clientset) *keeper {
	t.Helper()
	f := informers.NewSharedInformerFactory(client, 0)
	if err := f.Core().V1().Nodes().Informer().GetStore().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err != nil {
		t.Fatal(err)
	}
	return newKeeper(Deps{
		Client: client, Core: f.Core().V1(), Services: f.Core().V1().Services(), Slices: f.Discovery().V1().EndpointSlices(),
		Events: record.NewFakeRecorder(10), Log: slog.New(slog.DiscardHandler),
	})
}

func pod(i int, ports ...corev1.ContainerPort) *corev1.Pod {
	ip := fmt.Sprintf("10.0.%d.%d", i/250, i%250)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("%04d", i), UID: types.UID(fmt.Sprint(i))},
		Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Ports: ports}}},
		Status:     corev1.PodStatus{PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

func service(ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s", UID: "u", Labels: map[string]string{"l": "v"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: ports},
	}
}

func there(t *testing.T, client *fake.Clientset) []*discoveryv1.EndpointSlice {
	t.Helper()
	list, err := client.DiscoveryV1().EndpointSlices("a").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// told is what slices say, whatever their names and their order are.
func told(all []*discoveryv1.EndpointSlice) string {
	var lines []string
	for _, s := range all {
		slices.SortFunc(s.Endpoints, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.TargetRef.UID, b.TargetRef.UID) })
		line := fmt.Sprint(s.AddressType, controller.PortsKey(s.Ports), s.Labels, s.OwnerReferences[0].UID)
		for _, e := range s.Endpoints {
			line += fmt.Sprint(e.Addresses, *e.Conditions.Ready, *e.NodeName, e.TargetRef.Name)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return fmt.Sprint(lines)
}

// TestLikeLibrary has services and pods change, and their slices be written by the library with numbers in place of
// ports, and without: both say the same, and neither writes what has not changed.
func TestLikeLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 15 {
		plain, ours := named(), named()
		k := made(t, ours)
		library := endpointslice.NewReconciler(plain, k.nodes, perSlice, sliceutil.NewEndpointSliceTracker(), nil, record.NewFakeRecorder(10), manager)
		for range 8 {
			var ports []corev1.ServicePort
			for i := range r.IntN(4) {
				p := corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(r.Int32N(3) + 1)}
				if r.IntN(2) == 0 {
					p.TargetPort = intstr.FromString([]string{"web", "other"}[r.IntN(2)])
				}
				if r.IntN(3) == 0 {
					p.AppProtocol = new("http")
				}
				ports = append(ports, p)
			}
			s := service(ports...)
			if r.IntN(4) == 0 {
				s.Spec.ClusterIP = corev1.ClusterIPNone
			}
			var pods []*corev1.Pod
			for i := range r.IntN(6) {
				p := pod(i, corev1.ContainerPort{Name: "web", ContainerPort: 80 + r.Int32N(2), Protocol: corev1.ProtocolTCP})
				if r.IntN(3) == 0 {
					p.Spec.Containers[0].Ports = nil
				}
				pods = append(pods, p)
			}
			for range 2 {
				if err := library.Reconcile(klog.Logger{}, s, pods, there(t, plain), time.Time{}); err != nil {
					t.Fatal(err)
				}
				has := there(t, ours)
				if err := k.write(key, s, pods, has, time.Time{}); err != nil {
					t.Fatal(err)
				}
				if want, got := told(there(t, plain)), told(there(t, ours)); want != got {
					t.Fatalf("slices are\n%s\nand not\n%s", got, want)
				}
			}
			before := len(ours.Actions())
			if err := k.write(key, s, pods, there(t, ours), time.Time{}); err != nil {
				t.Fatal(err)
			}
			for _, a := range ours.Actions()[before:] {
				if a.GetVerb() != "list" {
					t.Fatalf("what has not changed is written: %v", a)
				}
			}
		}
	}
}

// TestManyPorts has a service of ten thousand ports select a thousand pods: what it costs is of the order of the ports
// and the pods, and what is told of pods with ports of their own is bounded.
func TestManyPorts(t *testing.T) {
	const many, n = 10_000, 1000
	var ports []corev1.ServicePort
	for i := range many {
		ports = append(ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1), TargetPort: intstr.FromInt32(int32(i + 1)), Protocol: corev1.ProtocolTCP})
	}
	var pods []*corev1.Pod
	for i := range n {
		pods = append(pods, pod(i, corev1.ContainerPort{Name: "own", ContainerPort: int32(20_000 + i), Protocol: corev1.ProtocolTCP}))
	}
	client := fake.NewClientset()
	var all []*discoveryv1.EndpointSlice
	client.PrependReactor("create", "endpointslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s, _ := a.(clienttesting.CreateAction).GetObject().(*discoveryv1.EndpointSlice)
		s.Name = fmt.Sprint(len(all))
		all = append(all, s)
		return true, s, nil
	})
	k := made(t, client)
	if cost := testing.AllocsPerRun(1, func() {
		in := newStandIns(service(ports...), pods, nil)
		if len(in.pods) != n || !in.whole || in.sets.Len() != 1 || len(in.service.Spec.Ports) != 1 {
			t.Errorf("%d pods have %d sets", len(in.pods), in.sets.Len())
		}
	}); cost > 10*(many+n) {
		t.Errorf("it takes %.0f allocations", cost)
	}
	ports[7].TargetPort = intstr.FromString("own")
	rand.Shuffle(n, func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	if err := k.write(key, service(ports...), pods, nil, time.Time{}); err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, s := range all {
		told += len(s.Ports)
		if name := s.Endpoints[0].TargetRef.Name; name >= "0020" {
			t.Errorf("%s is told of", name)
		}
	}
	if told != endpoints.MostPorts || len(all) != endpoints.MostPorts/many {
		t.Errorf("%d slices have %d ports", len(all), told)
	}
	select {
	case <-k.events.(*record.FakeRecorder).Events:
	default:
		t.Error("nobody is told that some are left out")
	}
}
