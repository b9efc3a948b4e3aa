package cluster

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestSameRequest: a request that is as it was is no news of it.
func TestSameRequest(t *testing.T) {
	of := func(name, version string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: version}}
	}
	w := watch.NewFakeWithChanSize(4, false)
	for _, o := range []*certificatesv1.CertificateSigningRequest{of("a", "1"), of("b", "2"), of("a", "1"), of("a", "3")} {
		w.Modify(o)
	}
	if got, err := event(w, of("a", "1")); err != nil || got == nil || got.ResourceVersion != "3" {
		t.Errorf("%+v, %v", got, err)
	}
	w = watch.NewFakeWithChanSize(1, false)
	w.Delete(of("a", "1"))
	if _, err := event(w, of("a", "1")); err == nil {
		t.Error("one that was removed is waited for")
	}
}
