package resourcequota

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// TestChargedIsNotUncounted has pods be counted between admission and when they are seen. They are not taken back; what
// was not made after all is, when it would have been seen.
func TestChargedIsNotUncounted(t *testing.T) {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q", ResourceVersion: "1"},
		Spec:       corev1.ResourceQuotaSpec{Hard: pods("2")},
	}
	client := fake.NewClientset(q)
	all := informers.NewSharedInformerFactory(client, 0).Core().V1()
	now := time.Unix(1e9, 0)
	c := New(Deps{
		Client: client, Quotas: all.ResourceQuotas(), Pods: all.Pods(), Log: slog.New(slog.DiscardHandler),
	}).(*counter)
	c.now = func() time.Time { return now }
	// sync is a look at what admission, or the one before, has written.
	sync := func(version, charged string) (used string, again time.Duration) {
		t.Helper()
		q = q.DeepCopy()
		if charged != "" {
			q.Status = corev1.ResourceQuotaStatus{Hard: pods("2"), Used: pods(charged)}
		}
		q.ResourceVersion = version
		if err := all.ResourceQuotas().Informer().GetStore().Add(q); err != nil {
			t.Fatal(err)
		}
		if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("resourcequotas"), q, "ns"); err != nil {
			t.Fatal(err)
		}
		again, err := c.sync(t.Context(), cache.MetaObjectToName(q))
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := got.Status.Used[corev1.ResourcePods]
		return n.String(), again
	}
	made := func(name string) {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		if err := all.Pods().Informer().GetStore().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	if used, again := sync("1", ""); used != "0" || again != countAgain {
		t.Errorf("of nothing: %s, again in %v", used, again)
	}
	if used, again := sync("2", "1"); used != "1" || again != settles {
		t.Errorf("before the first is seen: %s, again in %v", used, again)
	}
	made("first")
	now = now.Add(time.Second)
	if used, again := sync("3", "2"); used != "2" || again != settles {
		t.Errorf("before the second is seen: %s, again in %v", used, again)
	}
	now = now.Add(settles / 2)
	if used, again := sync("3", "2"); used != "2" || again != settles/2 {
		t.Errorf("not yet settled: %s, again in %v", used, again)
	}
	now = now.Add(settles / 2)
	if used, again := sync("3", "2"); used != "1" || again != countAgain {
		t.Errorf("the second has not come: %s, again in %v", used, again)
	}
	made("second")
	made("third")
	if used, _ := sync("4", "1"); used != "3" {
		t.Errorf("more than was counted: %s", used)
	}
	if err := all.ResourceQuotas().Informer().GetStore().Delete(q); err != nil {
		t.Fatal(err)
	}
	if _, err := c.sync(t.Context(), cache.MetaObjectToName(q)); err != nil || len(c.charges.since) > 0 {
		t.Errorf("%d are known when it is gone, %v", len(c.charges.since), err)
	}
}

func pods(n string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
}
