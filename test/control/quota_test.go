package control

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestQuotaHolds makes more pods than a quota lets in, one right after the other, while what is there is counted. No
// more than that come in.
func TestQuotaHolds(t *testing.T) {
	t.Parallel()
	p := share(t)
	quotas, pods := p.client.CoreV1().ResourceQuotas(p.ns), p.client.CoreV1().Pods(p.ns)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	comes := func(name string, o metav1.CreateOptions) bool {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: p.template("more", "i").Spec}
		_, err := pods.Create(t.Context(), pod, o)
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	until(t, "the quota counts", func() error {
		if comes("none", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}) {
			return errors.New("a pod is taken")
		}
		return nil
	})
	made, tried := 0, 0
	again := func() bool {
		tried++
		if !comes(fmt.Sprint("p-", tried), metav1.CreateOptions{}) {
			return false
		}
		made++
		return true
	}
	for most := 2; most <= 20; most += 2 {
		more := fmt.Sprintf(`{"spec":{"hard":{"pods":"%d"}}}`, most)
		if _, err := quotas.Patch(t.Context(), "q", types.MergePatchType, []byte(more), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, fmt.Sprintf("%d pods", most), func() error {
			for made < most && again() {
			}
			if made < most {
				return fmt.Errorf("%d have come in", made)
			}
			return nil
		})
		for range 30 {
			if again() {
				t.Fatalf("%d pods have come in where %d may", made, most)
			}
		}
	}
}
