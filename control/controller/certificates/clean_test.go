package certificates

import (
	"context"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"
)

// TestPodCleaner removes requests of pods when their time is over, and not before.
func TestPodCleaner(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	r := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "r", UID: "u", CreationTimestamp: metav1.NewTime(began),
	}}
	known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	client := fake.NewClientset(r)
	c := &podCleaner{client, certificateslisters.NewPodCertificateRequestLister(known), func() time.Time { return began.Add(time.Minute) }}
	key := cache.ObjectName{Namespace: "ns", Name: "r"}
	if again, err := c.sync(t.Context(), key); again != 0 || err != nil {
		t.Errorf("of one that is gone: %s, %v", again, err)
	}
	if err := known.Add(r); err != nil {
		t.Fatal(err)
	}
	left := func() int {
		t.Helper()
		list, err := client.CertificatesV1().PodCertificateRequests("ns").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	if again, err := c.sync(t.Context(), key); again != podRequestStays-time.Minute || err != nil || left() != 1 {
		t.Errorf("before its end: %s, %v, %d are left", again, err, left())
	}
	c.now = func() time.Time { return began.Add(podRequestStays) }
	if again, err := c.sync(t.Context(), key); again != 0 || err != nil || left() != 0 {
		t.Errorf("at its end: %s, %v, %d are left", again, err, left())
	}
	if again, err := c.sync(t.Context(), key); again != 0 || err != nil {
		t.Errorf("once more: %s, %v", again, err)
	}
}
