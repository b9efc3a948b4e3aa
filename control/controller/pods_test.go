package controller

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
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
