package podgc

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

func ended(namespace string, i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%06d", i), CreationTimestamp: metav1.Unix(int64(i), 0)},
		Status:     corev1.PodStatus{Phase: corev1.PodSucceeded},
	}
}

// TestTooMany has namespaces have more pods that have ended than stay: the oldest go of those that have the most.
func TestTooMany(t *testing.T) {
	for _, c := range []struct {
		have []int
		keep int
		left []int
	}{
		{[]int{3, 4}, 10, []int{3, 4}},
		{[]int{3, 40}, 10, []int{3, 7}},
		{[]int{40, 3, 0, 50}, 13, []int{5, 3, 0, 5}},
		{[]int{9}, 3, []int{3}},
		{[]int{2, 2, 2}, 0, []int{0, 0, 0}},
		{nil, 5, nil},
	} {
		var all [][]*corev1.Pod
		for n, many := range c.have {
			var pods []*corev1.Pod
			for i := range many {
				pods = append(pods, ended(fmt.Sprint(n), i))
			}
			slices.Reverse(pods)
			all = append(all, pods)
		}
		left := slices.Clone(c.have)
		for _, p := range tooMany(all, c.keep) {
			n, i := 0, 0
			if _, err := fmt.Sscan(p.Namespace, &n); err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Sscanf(p.Name, "%d", &i); err != nil {
				t.Fatal(err)
			}
			if i >= c.have[n]-c.left[n] {
				t.Errorf("%v: pod %d of namespace %d goes", c, i, n)
			}
			left[n]--
		}
		if !slices.Equal(left, c.left) {
			t.Errorf("%v: left are %v", c, left)
		}
	}
}

// TestManyEnded has somebody's pods end by the hundred where a stranger has few: all of the stranger's stay, and
// however many end, all are looked at once in a while.
func TestManyEnded(t *testing.T) {
	const crowd, keep = 600, 100
	client := fake.NewClientset()
	f := informers.NewSharedInformerFactory(client, 0)
	if _, err := New(client, f.Core().V1(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	pods := f.Core().V1().Pods()
	c := &collector{client: client, pods: pods.Lister(), index: pods.Informer().GetIndexer(), keep: keep, now: func() time.Time { return now }}
	add := func(p *corev1.Pod) {
		t.Helper()
		if err := c.index.Add(p); err != nil {
			t.Fatal(err)
		}
		if err := client.Tracker().Add(p); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 5 {
		add(ended("alone", i)) // the oldest of all
	}
	for i := range crowd {
		add(ended("crowd", 1000+i))
		again, err := c.sync(t.Context(), cache.ObjectName{})
		if err != nil || (i > 0) != (again > 0) {
			t.Fatalf("the look at %d is put off for %s, %v", i, again, err)
		}
	}
	now = now.Add(between)
	if again, err := c.sync(t.Context(), cache.ObjectName{}); again != 0 || err != nil {
		t.Fatal(again, err)
	}
	left := map[string]int{}
	list, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list.Items {
		left[p.Namespace]++
		if p.Namespace == "crowd" && p.CreationTimestamp.Unix() < 1000+crowd-95 {
			t.Errorf("%s stays", p.Name)
		}
	}
	if left["alone"] != 5 || left["crowd"] != 95 {
		t.Errorf("left are %v", left)
	}
	if keys := c.ofPod(ended("a", 1), ended("a", 1)); len(keys) != 1 {
		t.Errorf("one that had ended leads to %v", keys)
	}
	if keys := c.ofPod(nil, ended("a", 1)); len(keys) != 2 {
		t.Errorf("one that ends leads to %v", keys)
	}
}

// TestManyGone has pods of thousands of nodes that never were come and go: it is not remembered of all of them.
func TestManyGone(t *testing.T) {
	client := fake.NewClientset()
	f := informers.NewSharedInformerFactory(client, 0)
	if _, err := New(client, f.Core().V1(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	pods := f.Core().V1().Pods()
	c := &collector{
		client: client, nodes: f.Core().V1().Nodes().Lister(), pods: pods.Lister(), index: pods.Informer().GetIndexer(), now: time.Now,
		gone: map[string]time.Time{},
	}
	for i := range 5 * fewGone {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p", i)}, Spec: corev1.PodSpec{NodeName: fmt.Sprint("never", i)}}
		if err := c.index.Add(p); err != nil {
			t.Fatal(err)
		}
		if again, err := c.sync(t.Context(), cache.MetaObjectToName(p)); err != nil || again <= 0 {
			t.Fatalf("it is looked at again after %s, %v", again, err)
		}
		if i > 0 {
			if err := c.index.Delete(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, is := c.gone["never0"]; !is || len(c.gone) > fewGone+1 {
		t.Errorf("%d nodes are remembered, that of a pod that is there among them: %t", len(c.gone), is)
	}
}

// TestUnplaced has a pod without a node be deleted, and be left there by who has deleted it: it is removed, but not
// before he has had the time to.
func TestUnplaced(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	deleted := metav1.NewTime(now)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u", DeletionTimestamp: &deleted, Finalizers: []string{"example.com/kept"}}}
	client := fake.NewClientset(p)
	pods := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods()
	if err := pods.Informer().GetIndexer().Add(p); err != nil {
		t.Fatal(err)
	}
	c := &collector{client: client, pods: pods.Lister(), now: func() time.Time { return now }}
	key := cache.MetaObjectToName(p)
	for _, step := range []struct {
		later, again time.Duration
		writes       int
	}{{0, unplaced, 0}, {unplaced / 2, unplaced / 2, 0}, {unplaced / 2, 0, 1}} {
		now = now.Add(step.later)
		again, err := c.sync(t.Context(), key)
		if writes := len(client.Actions()); err != nil || again != step.again || writes != step.writes {
			t.Errorf("%v after it was deleted: again in %v, %d writes, %v; want %v and %d", now.Sub(deleted.Time), again, writes, err, step.again, step.writes)
		}
	}
}
