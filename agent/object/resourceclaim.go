package object

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ResourceClaimName is what the claim is called that an entry of a pod's spec.resourceClaims names, or that its
// template makes: <pod>-<entry> as in a cluster, but without a random end, so that its allocation can be written down.
// Where the pod's status says what it is called, as in a cluster, it is that; "" when it says that none is needed.
func ResourceClaimName(pod *corev1.Pod, c *corev1.PodResourceClaim) string {
	if c.ResourceClaimName != nil {
		return *c.ResourceClaimName
	}
	if name, said := saidName(pod, c); said {
		return name
	}
	name := pod.Name + "-" + c.Name
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	// Cut off, two pods' claims could have one name.
	const digits = 10
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-digits-1], "-.") + "-" + hex.EncodeToString(sum[:])[:digits]
}

// saidName is the name of a claim by the pod's status; false when that does not have the entry.
func saidName(pod *corev1.Pod, c *corev1.PodResourceClaim) (string, bool) {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name != c.Name {
			continue
		}
		if s.ResourceClaimName == nil {
			return "", true
		}
		return *s.ResourceClaimName, true
	}
	return "", false
}

// servedClaim is the claim that an API server has made for an entry of a pod, or that the entry names. The scheduler
// has allocated it before it bound the pod.
func servedClaim(s *Store, pod *corev1.Pod, c *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	name, said := saidName(pod, c)
	switch {
	case c.ResourceClaimName != nil:
		name = *c.ResourceClaimName
	case !said:
		return nil, fmt.Errorf("resourceclaim of %q is not made yet: status.resourceClaimStatuses does not have it", c.Name)
	case name == "":
		// The template asks for no devices.
		return &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: pod.Namespace, UID: madeUID(pod.UID, c.Name)},
			Status:     resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{}},
		}, nil
	}
	claim, err := get[*resourcev1.ResourceClaim](s, ResourceClaim, pod.Namespace, name)
	if err != nil {
		return nil, err
	}
	if made := metav1.GetControllerOf(claim); c.ResourceClaimName == nil && (made == nil || made.UID != pod.UID) {
		return nil, fmt.Errorf("resourceclaim %q was not made for this pod", name)
	}
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("resourceclaim %q is not allocated yet", name)
	}
	for _, r := range claim.Status.ReservedFor {
		if r.UID == pod.UID {
			return claim, nil
		}
	}
	return nil, fmt.Errorf("resourceclaim %q is not reserved for this pod", name)
}

// ResourceClaim is the allocated claim that an entry of a pod's spec.resourceClaims means. Nothing here chooses
// devices, so which they are must be written in the claim's status. A claim without requests needs none.
func (s *Store) ResourceClaim(pod *corev1.Pod, c *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	if s.served {
		return servedClaim(s, pod, c)
	}
	name := ResourceClaimName(pod, c)
	claim, err := get[*resourcev1.ResourceClaim](s, ResourceClaim, pod.Namespace, name)
	if c.ResourceClaimTemplateName != nil {
		claim, err = madeBy(s, pod, c, claim)
	}
	switch {
	case err != nil:
		return nil, err
	case claim.Status.Allocation != nil:
		return claim, nil
	case len(claim.Spec.Devices.Requests) > 0:
		return nil, fmt.Errorf("resourceclaim %q is not allocated: nothing on this node chooses devices, so its manifest has to name them "+
			"in status.allocation.devices.results (request, driver, pool and device), for %s", name, requests(&claim.Spec))
	}
	out := claim.DeepCopy()
	out.Status.Allocation = &resourcev1.AllocationResult{}
	return out, nil
}

// madeBy is the claim that a template makes for a pod. Its allocation is in the claim of that name that a manifest has;
// nil: in none.
func madeBy(s *Store, pod *corev1.Pod, c *corev1.PodResourceClaim, found *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	t, err := get[*resourcev1.ResourceClaimTemplate](s, ResourceClaimTemplate, pod.Namespace, *c.ResourceClaimTemplateName)
	if err != nil {
		return nil, err
	}
	name := ResourceClaimName(pod, c)
	switch {
	case found == nil && len(t.Spec.Spec.Devices.Requests) > 0:
		return nil, fmt.Errorf("resourceclaim %q, which template %q makes for the pod, is not allocated: nothing on this node chooses devices, so a manifest has "+
			"to have a ResourceClaim of that name in namespace %s, with the template's spec.spec as its spec, and the devices in status.allocation.devices.results, for %s",
			name, t.Name, pod.Namespace, requests(&t.Spec.Spec))
	case found == nil:
		return &resourcev1.ResourceClaim{
			TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: string(ResourceClaim)},
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: pod.Namespace, UID: madeUID(pod.UID, c.Name), Labels: t.Spec.Labels, Annotations: t.Spec.Annotations,
			},
		}, nil
	case !equality.Semantic.DeepEqual(found.Spec, t.Spec.Spec):
		return nil, fmt.Errorf("resourceclaim %q has another spec than template %q, so it was not made for this pod: give it the template's spec.spec, or another name", name, t.Name)
	}
	return found, nil
}

// madeUID is that of a claim that comes and goes with its pod.
func madeUID(pod types.UID, entry string) types.UID {
	sum := sha256.Sum256([]byte(string(pod) + "/" + entry))
	return types.UID(hex.EncodeToString(sum[:16]))
}

func requests(s *resourcev1.ResourceClaimSpec) string {
	var names []string
	for _, r := range s.Devices.Requests {
		names = append(names, fmt.Sprintf("%q", r.Name))
	}
	if len(names) == 1 {
		return "request " + names[0]
	}
	return "requests " + strings.Join(names, ", ")
}
