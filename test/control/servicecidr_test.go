package control

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServiceCIDR keeps a range that is deleted until no service has an address of it.
func TestServiceCIDR(t *testing.T) {
	t.Parallel()
	p := start(t, t.TempDir())
	ranges := p.client.NetworkingV1().ServiceCIDRs()
	if _, err := ranges.Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"192.0.2.0/24"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says := func(want metav1.ConditionStatus) {
		t.Helper()
		until(t, "the range says "+string(want), func() error {
			r, err := ranges.Get(t.Context(), "more", metav1.GetOptions{})
			if err == nil && (!meta.IsStatusConditionPresentAndEqual(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady, want) || len(r.Finalizers) != 1) {
				err = fmt.Errorf("it is %v", r)
			}
			return err
		})
	}
	says(metav1.ConditionTrue)
	if _, err := p.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{ClusterIP: "192.0.2.9", Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ranges.Delete(t.Context(), "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	says(metav1.ConditionFalse)
	if err := p.client.CoreV1().Services("default").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the range is gone", func() error {
		_, err := ranges.Get(t.Context(), "more", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	p.stop(t)
}
