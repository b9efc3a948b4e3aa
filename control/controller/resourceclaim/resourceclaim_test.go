package resourceclaim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDecide has a claim taken from the pods that use it to its end, one write at a time, and be kept while it is used.
func TestDecide(t *testing.T) {
	user := resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: "p", UID: "1"}
	owner := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	now := metav1.Now()
	claim := func(reserved, allocated, protected, deleted bool) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{}
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("Pod"))}
		if reserved {
			c.Status.ReservedFor = append(c.Status.ReservedFor, user)
		}
		if allocated {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		if protected {
			c.Finalizers = []string{resourcev1.Finalizer}
		}
		if deleted {
			c.DeletionTimestamp = &now
		}
		return c
	}
	for name, c := range map[string]struct {
		claim *resourcev1.ResourceClaim
		live  bool
		owner *corev1.Pod
		want  next
	}{
		"used":                      {claim(true, true, true, false), true, nil, nothing},
		"used and deleted":          {claim(true, true, true, true), true, nil, nothing},
		"its pod has ended":         {claim(true, true, true, false), false, owner, deallocate},
		"deleted with devices":      {claim(false, true, true, true), false, nil, deallocate},
		"deleted, devices are free": {claim(false, false, true, true), false, nil, unprotect},
		"made for who has ended":    {claim(false, false, true, false), false, owner, discard},
		"its devices are kept":      {claim(false, true, true, false), false, nil, nothing},
		"somebody else keeps it":    {claim(false, false, false, true), false, nil, nothing},
	} {
		var live []resourcev1.ResourceClaimConsumerReference
		if c.live {
			live = c.claim.Status.ReservedFor
		}
		if got := decide(c.claim, live, c.owner); got != c.want {
			t.Errorf("%s: %d, not %d", name, got, c.want)
		}
	}
}

// TestGenerated has names of claims begin with the pod's and the claim's, and leave room for what makes them one.
func TestGenerated(t *testing.T) {
	long := "a-name-that-is-as-long-as-the-names-of-pods-of-deployments-are-6d4cf56db6-x2x2x"
	for _, c := range []struct{ pod, claim, want string }{
		{"p", "c", "p-c-"},
		{long, "gpu", ""},
		{long, long[:63], ""},
	} {
		got := generated(c.pod, c.claim)
		if c.want != "" && got != c.want || len(got) > longest+1 {
			t.Errorf("%q of %d", got, len(got))
		}
	}
}
