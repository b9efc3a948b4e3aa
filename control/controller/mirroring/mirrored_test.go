package mirroring

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

func given() *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "a", Name: "s", UID: "u", Labels: map[string]string{"l": "1"},
			Annotations: map[string]string{"n": "1", corev1.EndpointsLastChangeTriggerTime: "now"},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "10.0.0.1"}, {IP: "fd00::1", Hostname: "h"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "10.0.0.2"}},
			Ports:             []corev1.EndpointPort{{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
	}
}

// TestMirrored makes a slice for each family, with what the object has.
func TestMirrored(t *testing.T) {
	got, left := mirrored(given(), 10)
	if len(got) != 2 || left != (leftOut{}) || got[0].AddressType != discoveryv1.AddressTypeIPv4 || len(got[0].Endpoints) != 2 || len(got[1].Endpoints) != 1 {
		t.Fatalf("slices are %v", got)
	}
	s := got[0]
	if *s.Endpoints[0].Conditions.Ready == *s.Endpoints[1].Conditions.Ready || *s.Ports[0].Port != 80 || *got[1].Endpoints[0].Hostname != "h" {
		t.Errorf("endpoints are %v", s.Endpoints)
	}
	if s.Labels["l"] != "1" || s.Labels[discoveryv1.LabelManagedBy] != manager || s.Labels[discoveryv1.LabelServiceName] != "s" || len(s.Annotations) != 1 {
		t.Errorf("it is %v", s.ObjectMeta)
	}
	if again, _ := mirrored(given(), 10); again[0].Name != s.Name || got[1].Name == s.Name || !strings.HasPrefix(s.Name, "s-") {
		t.Errorf("names are %q and %q", s.Name, got[1].Name)
	}
	few := given()
	few.Subsets[0].Addresses[0].IP = "x"
	if _, left := mirrored(few, 1); left != (leftOut{invalid: 1, many: 1}) {
		t.Errorf("left out are %v", left)
	}
	long := given()
	long.Name = strings.Repeat("a", maxName)
	if got, _ := mirrored(long, 10); len(got[0].Name) > maxName {
		t.Errorf("the name has %d", len(got[0].Name))
	}
}

// TestPlanned changes what may be changed, and removes what nobody wants.
func TestPlanned(t *testing.T) {
	e := given()
	want, _ := mirrored(e, 10)
	if p := planned(e, nil, want); len(p.create) != 2 || len(p.update)+len(p.remove) != 0 {
		t.Errorf("at first %v", p)
	}
	if p := planned(e, want, want); len(p.create)+len(p.update)+len(p.remove) != 0 {
		t.Errorf("of the same %v", p)
	}
	has := []*discoveryv1.EndpointSlice{want[0].DeepCopy(), want[1].DeepCopy(), want[1].DeepCopy()}
	has[0].Name, has[2].Name = "other", "z"
	has[0].Endpoints = has[0].Endpoints[:1]
	if p := planned(e, has, want); len(p.create) != 0 || len(p.update) != 1 || p.update[0].Name != "other" || len(p.remove) != 1 || p.remove[0].Name != "z" {
		t.Errorf("of others %v", p)
	}
	again := given()
	again.UID = "v"
	want, _ = mirrored(again, 10)
	if p := planned(again, has[:1], want); len(p.create) != 2 || len(p.remove) != 1 {
		t.Errorf("of one that was made again %v", p)
	}
	if p := planned(nil, has, nil); len(p.remove) != 3 {
		t.Errorf("of none %v", p)
	}
}

// TestPlannedMany has somebody make hundreds of slices in the name of this controller, and as many be wanted: the
// ports of each are read once.
func TestPlannedMany(t *testing.T) {
	const n = 300
	e := given()
	e.Subsets = nil
	for i := range n {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{
			Addresses: []corev1.EndpointAddress{{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}}, Ports: []corev1.EndpointPort{{Port: int32(i + 1)}},
		})
	}
	want, _ := mirrored(e, 10)
	var has []*discoveryv1.EndpointSlice
	for i := range n {
		s := want[i].DeepCopy()
		s.Name, s.Ports = fmt.Sprint(i), []discoveryv1.EndpointPort{{Port: new(int32(9000 + i))}}
		has = append(has, s)
	}
	if allocs := testing.AllocsPerRun(1, func() {
		if p := planned(e, has, want); len(want) != n || len(p.create) != n || len(p.remove) != n {
			t.Errorf("made are %d of %d, removed %d", len(p.create), len(want), len(p.remove))
		}
	}); allocs > 100*n {
		t.Errorf("it costs %.0f allocations", allocs)
	}
}

// TestTurns mirrors an object with thousands of subsets: others have their turn after a part of the writes, and in the
// end all of it is there, and then none.
func TestTurns(t *testing.T) {
	const many = 2*perTurn + 50
	e := given()
	e.Subsets = nil
	for i := range int32(many) {
		e.Subsets = append(e.Subsets, corev1.EndpointSubset{
			Addresses: []corev1.EndpointAddress{{IP: fmt.Sprintf("10.1.%d.%d", i/250, i%250)}},
			Ports:     []corev1.EndpointPort{{Port: i + 1, Protocol: corev1.ProtocolTCP}},
		})
	}
	client := fake.NewClientset()
	f := informers.NewSharedInformerFactory(client, 0)
	slices := f.Discovery().V1().EndpointSlices().Informer()
	if err := controller.IndexByService(slices); err != nil {
		t.Fatal(err)
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}}
	all := f.Core().V1().Endpoints()
	for _, err := range []error{f.Core().V1().Services().Informer().GetStore().Add(s), all.Informer().GetStore().Add(e)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m := &mirror{client, f.Core().V1().Services().Lister(), all.Lister(), slices.GetIndexer(), record.NewFakeRecorder(10)}
	turns := func(want int) {
		t.Helper()
		for turn := 1; ; turn++ {
			before := len(client.Actions())
			if _, err := m.sync(t.Context(), cache.MetaObjectToName(e)); err != nil {
				t.Fatal(err)
			}
			writes := len(client.Actions()) - before
			if writes > perTurn || turn > 4 {
				t.Fatalf("in turn %d there are %d writes", turn, writes)
			}
			has, err := client.DiscoveryV1().EndpointSlices("a").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var seen []any
			for i := range has.Items {
				seen = append(seen, &has.Items[i])
			}
			if err := slices.GetIndexer().Replace(seen, ""); err != nil {
				t.Fatal(err)
			}
			if writes == 0 { // no event of a slice leads to another turn
				if len(seen) != want {
					t.Fatalf("there are %d slices, and %d are wanted", len(seen), want)
				}
				return
			}
		}
	}
	turns(many)
	e.Annotations["n"] = "2"
	turns(many)
	e.Subsets = nil
	turns(0)
}
