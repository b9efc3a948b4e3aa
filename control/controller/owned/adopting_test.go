package owned

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// TestManyAdopting has thousands of owners: of an object that has none those are asked that name its labels, and of
// thousands that would adopt it not all are.
func TestManyAdopting(t *testing.T) {
	sets := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Apps().V1().ReplicaSets().Informer()
	read := 0
	adopting, err := NewAdopting(sets, func(s *appsv1.ReplicaSet) *metav1.LabelSelector {
		read++
		return s.Spec.Selector
	})
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, of *metav1.LabelSelector, change func(*appsv1.ReplicaSet)) {
		s := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}, Spec: appsv1.ReplicaSetSpec{Selector: of}}
		if change != nil {
			change(s)
		}
		if err := sets.GetIndexer().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 {
		add(fmt.Sprint(i), &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i), "of": "all"}}, nil)
		add(fmt.Sprint("same", i), &metav1.LabelSelector{MatchLabels: map[string]string{"same": "yes"}}, nil)
	}
	add("nothing", nil, nil)
	add("all", &metav1.LabelSelector{}, nil)
	add("gone", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "5"}}, func(s *appsv1.ReplicaSet) {
		s.DeletionTimestamp = new(metav1.Now())
	})
	pod := func(of map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Labels: of}}
	}
	read = 0
	keys := adopting(pod(map[string]string{"app": "5", "of": "all", "more": "x"}))
	if len(keys) != 1 || keys[0] != (cache.ObjectName{Namespace: "n", Name: "5"}) {
		t.Errorf("asked are %v", keys)
	}
	if keys := adopting(pod(map[string]string{"same": "yes"})); len(keys) != mostAsked {
		t.Errorf("asked are %d", len(keys))
	}
	if read > 2*mostAsked {
		t.Errorf("%d selectors are looked at", read)
	}
	if keys := adopting(pod(nil)); len(keys) != 0 {
		t.Errorf("what has no labels is adopted by %v", keys)
	}
}

// TestManyOrphans has thousands of objects that nobody has: an owner is told of those that have a label of its
// selector's, of several the one that the fewest have.
func TestManyOrphans(t *testing.T) {
	pods := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods().Informer()
	index, err := NewIndex[*corev1.Pod](pods)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint(i), Labels: map[string]string{"app": fmt.Sprint(i), "of": "all"}}}
		if i%2 == 1 {
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "o", UID: "o"}, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		}
		if err := pods.GetIndexer().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]int{"app=4,of=all": 1, "app=5": 0, "of=all": 1000, "of in (all),app notin (2)": 1000, "app": 1000, "app in (4)": 1, "app in (4,6)": 1000} {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(index.Orphans("n", s)); got != want {
			t.Errorf("%s: told of %d, not %d", text, got, want)
		}
		if got := len(index.Orphans("m", s)); got != 0 {
			t.Errorf("%s: told of %d of another namespace", text, got)
		}
	}
}
