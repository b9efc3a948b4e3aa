package object

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ResourceClaimName is what the claim is called that an entry of a pod's spec.resourceClaims names, or that its
// template makes: what an API server says in the pod's status, else <pod>-<entry> as in a cluster, but without a random
// end, so that its allocation can be written down.
func ResourceClaimName(pod *corev1.Pod, c *corev1.PodResourceClaim) string {
	if c.ResourceClaimName != nil {
		return *c.ResourceClaimName
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		if made.Name == c.Name && made.ResourceClaimName != nil {
			return *made.ResourceClaimName
		}
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

// ResourceClaim is the allocated claim that an entry of a pod's spec.resourceClaims means. Nothing here chooses
// devices, so which they are must be written in the claim's status. A claim without requests needs none.
func (s *Store) ResourceClaim(pod *corev1.Pod, c *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	name := ResourceClaimName(pod, c)
	claim, err := get[*resourcev1.ResourceClaim](s, ResourceClaim, pod.Namespace, name)
	if c.ResourceClaimTemplateName != nil {
		claim, err = s.made(pod, c, claim)
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

// AllocatedClaim is the claim of an entry of a pod of an API server, where a controller makes the claims of templates,
// and the scheduler allocates and reserves them.
func (s *Store) AllocatedClaim(pod *corev1.Pod, c *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	name := ResourceClaimName(pod, c)
	claim, err := get[*resourcev1.ResourceClaim](s, ResourceClaim, pod.Namespace, name)
	if err != nil {
		return nil, err
	}
	reserved := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }
	switch {
	case c.ResourceClaimTemplateName != nil && !metav1.IsControlledBy(claim, pod):
		return nil, fmt.Errorf("resourceclaim %q was not made for the pod", name)
	case claim.Status.Allocation == nil:
		return nil, fmt.Errorf("resourceclaim %q is not allocated yet", name)
	case !slices.ContainsFunc(claim.Status.ReservedFor, reserved):
		return nil, fmt.Errorf("resourceclaim %q is not reserved for the pod", name)
	}
	return claim, nil
}

// made is the claim that a template makes for a pod. Its allocation is in the claim of that name that a manifest has;
// nil: in none.
func (s *Store) made(pod *corev1.Pod, c *corev1.PodResourceClaim, found *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
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
