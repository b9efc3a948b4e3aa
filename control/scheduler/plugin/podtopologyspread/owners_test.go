package podtopologyspread

import (
	"fmt"
	"runtime"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
)

// TestManyOwners has a namespace with thousands of services, and a set whose selector is as large as an object may be:
// what is asked for each pod does not grow with them.
func TestManyOwners(t *testing.T) {
	f := informers.NewSharedInformerFactory(nil, 0)
	o, err := newOwners(f)
	if err != nil {
		t.Fatal(err)
	}
	service := func(name string, selector map[string]string) {
		t.Helper()
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: corev1.ServiceSpec{Selector: selector}}
		if err := f.Core().V1().Services().Informer().GetIndexer().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5000 {
		service(fmt.Sprint("other", i), map[string]string{"app": fmt.Sprint(i)})
	}
	service("none", nil)
	service("empty", map[string]string{})
	service("one", map[string]string{"app": "web"})
	service("two", map[string]string{"tier": "front", "app": "web"})
	service("more", map[string]string{"app": "web", "tier": "back"})
	values := make([]string, 20_000)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r", UID: "1", Generation: 1}}
	set.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "not", Operator: metav1.LabelSelectorOpNotIn, Values: values},
	}}
	if err := f.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(set); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: "p", Labels: map[string]string{"app": "web", "tier": "front", "of": "its own"},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
	}}
	for text, want := range map[string]bool{"front": true, "back": false} {
		if got := o.selector(pod).Matches(labels.Set{"app": "web", "tier": text}); got != want {
			t.Errorf("of tier %s it is %t, not %t", text, got, want)
		}
	}
	if o.selector(pod).Matches(labels.Set{"app": "web", "tier": "front", "not": "v7"}) {
		t.Error("what the set does not select belongs to it")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const times = 50
	for range times {
		o.selector(pod)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / times; each > 16<<10 {
		t.Errorf("it takes %d bytes to ask for a pod", each)
	}
	// Another set of the name, and one that is specified anew, is another.
	changed := set.DeepCopy()
	changed.Generation, changed.Spec.Selector.MatchExpressions[0].Values = 2, []string{"x"}
	if err := f.Apps().V1().ReplicaSets().Informer().GetIndexer().Update(changed); err != nil {
		t.Fatal(err)
	}
	if !o.selector(pod).Matches(labels.Set{"app": "web", "tier": "front", "not": "v7"}) {
		t.Error("what the set was counts")
	}
	set.Spec.Selector = nil
	for range mostRead + 1 {
		set.Generation++
		o.read.of(set, set.Spec.Selector)
	}
	if len(o.read.all) > mostRead {
		t.Errorf("%d selectors are kept", len(o.read.all))
	}
}
