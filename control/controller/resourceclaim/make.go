package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// longest is what there is of a name before what the API server adds to make it one of its own, with the dash between.
const longest = 63 - 5 - 1

// errNoTemplate is in the chain of what is returned while a template is not there.
var errNoTemplate = errors.New("its template is not there")

// ensure is the name of the claim of a pod's template, which is made where there is none; "": none is needed.
func (m *maker) ensure(ctx context.Context, p *corev1.Pod, c *corev1.PodResourceClaim) (string, error) {
	if name, owned, err := resourceclaim.Name(p, c); err == nil {
		if name == nil {
			return "", nil
		}
		there, err := m.claims.ResourceClaims(p.Namespace).Get(*name)
		switch {
		case err == nil && owned:
			if err := resourceclaim.IsForPod(p, there, false); err != nil {
				return "", err
			}
			return *name, nil
		case err == nil:
			return *name, nil
		case !apierrors.IsNotFound(err):
			return "", err
		}
	} else if !errors.Is(err, resourceclaim.ErrClaimNotFound) {
		return "", err
	}
	// It may be there, and the pod not know of it yet.
	if there := m.made(p, c.Name); there != nil {
		return there.Name, nil
	}
	t, err := m.templates.ResourceClaimTemplates(p.Namespace).Get(*c.ResourceClaimTemplateName)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("%w: %w", errNoTemplate, err)
	}
	if err != nil {
		return "", err
	}
	made, err := m.client.ResourceV1().ResourceClaims(p.Namespace).Create(ctx, claimOf(p, c.Name, t), metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	m.owned.Mutation(made)
	return made.Name, nil
}

// claimOf is a claim of a template, for a pod. The UID of its owner is that of one pod and no other.
func claimOf(p *corev1.Pod, name string, t *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: generated(p.Name, name), Labels: maps.Clone(t.Spec.Labels), Annotations: maps.Clone(t.Spec.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: *t.Spec.Spec.DeepCopy(),
	}
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[resourcev1.PodResourceClaimAnnotation] = name
	return c
}

// generated is what the name of a pod's claim begins with: both names, of which a long one is cut, so that the API
// server cuts nothing of what makes it readable.
func generated(pod, claim string) string {
	const most = longest - 1 // the dash between
	if len(pod)+len(claim) > most {
		room := max(most-len(claim), most/2)
		pod = strings.TrimRight(pod[:min(len(pod), room)], "-.")
		claim = strings.TrimRight(claim[:min(len(claim), most-len(pod))], "-.")
	}
	return pod + "-" + claim + "-"
}

// made is the claim that was made for a pod by one of its names.
func (m *maker) made(p *corev1.Pod, name string) *resourcev1.ResourceClaim {
	all, err := m.owned.ByIndex(byOwner, string(p.UID))
	if err != nil {
		return nil // the index is made before it is asked
	}
	for _, o := range all {
		if c, ok := o.(*resourcev1.ResourceClaim); ok && isMade(c, p, name) {
			return c
		}
	}
	return nil
}

func isMade(c *resourcev1.ResourceClaim, p *corev1.Pod, name string) bool {
	return c.Annotations[resourcev1.PodResourceClaimAnnotation] == name && c.DeletionTimestamp == nil && metav1.IsControlledBy(c, p)
}

// tell writes to a pod's status which claims were made for it.
func (m *maker) tell(ctx context.Context, p *corev1.Pod, made map[string]string) error {
	has := map[string]string{}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			has[s.Name] = *s.ResourceClaimName
		}
	}
	var statuses []corev1.PodResourceClaimStatus
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if has[name] == made[name] {
			continue
		}
		of := made[name]
		statuses = append(statuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &of})
	}
	if len(statuses) == 0 {
		return nil
	}
	// The UID keeps it from a pod that was made again under the name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": map[string]any{"resourceClaimStatuses": statuses}})
	if err == nil {
		_, err = m.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
