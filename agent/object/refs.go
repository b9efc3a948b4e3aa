package object

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Refs lists the objects that a pod depends on, each once, those that may be missing too. What a claim is bound to is not among
// them: that depends on the claim.
func Refs(pod *corev1.Pod) []Ref {
	r := refs{namespace: pod.Namespace}
	s := &pod.Spec
	for _, p := range s.ImagePullSecrets {
		r.add(Secret, p.Name)
	}
	if s.RuntimeClassName != nil {
		r.add(RuntimeClass, *s.RuntimeClassName)
	}
	r.add(PriorityClass, s.PriorityClassName)
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			r.container(&list[i])
		}
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		r.volume(v)
		// The claim that its template makes is to be in no manifest, and what it may be bound to concerns the pod like a claim's volume.
		if v.Ephemeral != nil {
			r.add(PersistentVolumeClaim, ClaimName(pod, v.Name))
		}
	}
	for i := range s.ResourceClaims {
		c := &s.ResourceClaims[i]
		r.add(ResourceClaim, ResourceClaimName(pod, c))
		if c.ResourceClaimTemplateName != nil {
			r.add(ResourceClaimTemplate, *c.ResourceClaimTemplateName)
		}
	}
	return r.list
}

type refs struct {
	namespace string
	list      []Ref
}

func (r *refs) add(k Kind, name string) {
	ref := RefTo(k, r.namespace, name)
	if name != "" && !slices.Contains(r.list, ref) {
		r.list = append(r.list, ref)
	}
}

func (r *refs) container(c *corev1.Container) {
	for _, f := range c.EnvFrom {
		if f.ConfigMapRef != nil {
			r.add(ConfigMap, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			r.add(Secret, f.SecretRef.Name)
		}
	}
	for i := range c.Env {
		switch from := c.Env[i].ValueFrom; {
		case from == nil:
		case from.ConfigMapKeyRef != nil:
			r.add(ConfigMap, from.ConfigMapKeyRef.Name)
		case from.SecretKeyRef != nil:
			r.add(Secret, from.SecretKeyRef.Name)
		}
	}
}

func (r *refs) volume(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		r.add(ConfigMap, v.ConfigMap.Name)
	case v.Secret != nil:
		r.add(Secret, v.Secret.SecretName)
	case v.ISCSI != nil && v.ISCSI.SecretRef != nil:
		r.add(Secret, v.ISCSI.SecretRef.Name)
	case v.PersistentVolumeClaim != nil:
		r.add(PersistentVolumeClaim, v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.ConfigMap != nil {
				r.add(ConfigMap, p.ConfigMap.Name)
			}
			if p.Secret != nil {
				r.add(Secret, p.Secret.Name)
			}
		}
	}
}
