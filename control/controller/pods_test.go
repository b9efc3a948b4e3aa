package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestPodsOn asks for the pods of one node where others have thousands: that costs what there are on it.
func TestPodsOn(t *testing.T) {
	pods := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	for range 2 { // the second of the controllers finds it made
		if err := IndexByNode(pods); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10_000 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i)}}
		p.Spec.NodeName = fmt.Sprint("node-", i%5000)
		if i%3 == 0 {
			p.Spec.NodeName = "crowd"
		}
		if err := pods.GetIndexer().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(5, func() {
		if keys := KeysOn(pods.GetIndexer(), "node-1"); len(keys) != 1 || keys[0].Namespace != "n" {
			t.Fatalf("they are %v", keys)
		}
	}); n > 10 {
		t.Errorf("it costs %.0f allocations", n)
	}
}

// TestPodsSelected asks for pods by selectors where a namespace has thousands of others: it has those that all who look
// at each would have, and costs what there are.
func TestPodsSelected(t *testing.T) {
	pods := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	if err := IndexByLabel(pods); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), Labels: map[string]string{
			"all": "x", "app": fmt.Sprint(i % 1000), "two": fmt.Sprint(i % 2), "none": "",
		}}}
		if i%5 == 0 {
			p.Namespace, p.Labels = "other", map[string]string{"app": "1"}
		}
		if err := pods.GetIndexer().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	for text, most := range map[string]float64{
		"app=1,all=x": 30, "app=1,two=0": 30, "app in (1)": 30, "app=7,two!=0,none=": 30, "app=none": 30, "all=y,two=1": 30,
		"": 20_000, "app in (1,2)": 20_000, "two=1": 20_000, "!app": 20_000, "app,two notin (1)": 20_000,
	} {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		all, err := corelisters.NewPodLister(pods.GetIndexer()).Pods("n").List(s)
		if err != nil {
			t.Fatal(err)
		}
		want := map[*corev1.Pod]bool{}
		for _, p := range all {
			want[p] = true
		}
		var got []*corev1.Pod
		if n := testing.AllocsPerRun(2, func() { got = PodsSelected(pods.GetIndexer(), "n", s) }); n > most {
			t.Errorf("%q costs %.0f allocations", text, n)
		}
		if len(got) != len(want) {
			t.Errorf("%q has %d of %d", text, len(got), len(want))
		}
		for _, p := range got {
			if !want[p] {
				t.Errorf("%q has %s", text, p.Name)
			}
		}
	}
	if got := PodsSelected(pods.GetIndexer(), "n", labels.Nothing()); len(got) != 0 {
		t.Errorf("nothing has %d", len(got))
	}
}

// TestSlicesOf asks for the slices of one service where others have thousands.
func TestSlicesOf(t *testing.T) {
	all := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Discovery().V1().EndpointSlices().Informer()
	if err := IndexByService(all); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), Labels: map[string]string{
			discoveryv1.LabelServiceName: fmt.Sprint(i % 2500), discoveryv1.LabelManagedBy: fmt.Sprint("m", i/2500),
		}}}
		if err := all.GetIndexer().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(5, func() {
		if got := SlicesOf(all.GetIndexer(), cache.ObjectName{Namespace: "n", Name: "7"}, "m1"); len(got) != 1 || got[0].Name != "2507" {
			t.Fatalf("they are %v", got)
		}
	}); n > 10 {
		t.Errorf("it costs %.0f allocations", n)
	}
}
