package object

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestResourceClaim(t *testing.T) {
	name, template := "gpu", "gpus"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p-node", Namespace: "default", UID: "u"}}
	named, made := &corev1.PodResourceClaim{Name: "a", ResourceClaimName: &name}, &corev1.PodResourceClaim{Name: "b", ResourceClaimTemplateName: &template}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{*named, *made}
	var s Store
	put := func(k Kind, o Object) { s.Put(RefTo(k, "default", o.GetName()), o) }
	want := func(e *corev1.PodResourceClaim, why string) *resourcev1.ResourceClaim {
		t.Helper()
		c, err := s.ResourceClaim(pod, e)
		if why == "" {
			if err != nil || c.Status.Allocation == nil {
				t.Fatalf("got %v, %v", c, err)
			}
			return c
		}
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, want %q", err, why)
		}
		return nil
	}
	spec := resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "x"}, {Name: "y"}}}}
	claim := func(name string, spec resourcev1.ResourceClaimSpec, allocated bool) *resourcev1.ResourceClaim {
		c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "c"}, Spec: spec}
		if allocated {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		return c
	}

	want(named, `resourceclaim "gpu" not found`)
	put(ResourceClaim, claim("gpu", spec, false))
	want(named, `resourceclaim "gpu" is not allocated: nothing on this node chooses devices, so its manifest has to name them in status.allocation.devices.results (request, driver, pool and device), for requests "x", "y"`)
	put(ResourceClaim, claim("gpu", spec, true))
	want(named, "")
	put(ResourceClaim, claim("gpu", resourcev1.ResourceClaimSpec{}, false)) // wants nothing
	want(named, "")

	want(made, `resourceclaimtemplate "gpus" not found`)
	put(ResourceClaimTemplate, &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "gpus", Namespace: "default"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec}})
	want(made, `resourceclaim "p-node-b", which template "gpus" makes for the pod, is not allocated`)
	put(ResourceClaim, claim("p-node-b", resourcev1.ResourceClaimSpec{}, true))
	want(made, `has another spec than template "gpus", so it was not made for this pod`)
	put(ResourceClaim, claim("p-node-b", spec, false))
	want(made, `"p-node-b" is not allocated`)
	put(ResourceClaim, claim("p-node-b", *spec.DeepCopy(), true))
	want(made, "")
	s.Put(RefTo(ResourceClaim, "default", "p-node-b"), nil)
	put(ResourceClaimTemplate, &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "gpus", Namespace: "default"}})
	one := want(made, "")
	pod.UID = "v"
	if two := want(made, ""); one.UID == "" || one.UID == two.UID {
		t.Errorf("claims of two pods have UIDs %q and %q", one.UID, two.UID)
	}

	// Names that are too long stay apart.
	pod.Name = strings.Repeat("a", 253)
	if a, b := ResourceClaimName(pod, made), ResourceClaimName(pod, &corev1.PodResourceClaim{Name: "c"}); len(a) != 253 || a == b {
		t.Errorf("long names are %s and %s", a, b)
	}
}

func TestServedClaims(t *testing.T) {
	s, template, name := &Store{served: true}, "gpus", "p-b-x7k2p"
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	entry := &corev1.PodResourceClaim{Name: "b", ResourceClaimTemplateName: &template}
	if _, err := s.ResourceClaim(pod, entry); err == nil || !strings.Contains(err.Error(), "not made yet") {
		t.Errorf("no status: %v", err)
	}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b"}}
	if c, err := s.ResourceClaim(pod, entry); err != nil || c.Status.Allocation == nil {
		t.Errorf("none is needed: %v, %v", c, err)
	}
	pod.Status.ResourceClaimStatuses[0].ResourceClaimName = &name
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	for _, step := range []struct {
		change func()
		why    string // "": none
	}{
		{func() {}, "not made for this pod"},
		{func() { claim.OwnerReferences = []metav1.OwnerReference{{UID: "u", Controller: &yes}} }, "not allocated"},
		{func() { claim.Status.Allocation = &resourcev1.AllocationResult{} }, "not reserved"},
		{func() { claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{UID: "u"}} }, ""},
	} {
		step.change()
		s.Put(RefTo(ResourceClaim, "default", name), claim.DeepCopy())
		_, err := s.ResourceClaim(pod, entry)
		if (err == nil) != (step.why == "") || err != nil && !strings.Contains(err.Error(), step.why) {
			t.Errorf("want %q: %v", step.why, err)
		}
	}
}

func TestServedVolumes(t *testing.T) {
	s := &Store{served: true}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", UID: "new"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "old"}
	s.Put(RefTo(PersistentVolume, "", "v"), pv)
	for _, step := range []struct {
		change func()
		why    string
	}{
		{func() {}, "not bound yet"},
		{func() { claim.Spec.VolumeName = "v" }, "not bound yet"},
		{func() { claim.Status.Phase = corev1.ClaimBound }, "not bound to this claim"},
		{func() { claim.UID = "old" }, ""},
	} {
		step.change()
		s.Put(RefTo(PersistentVolumeClaim, "default", "c"), claim.DeepCopy())
		_, err := s.Volume("default", "c")
		if (err == nil) != (step.why == "") || err != nil && !strings.Contains(err.Error(), step.why) {
			t.Errorf("want %q: %v", step.why, err)
		}
	}
}
