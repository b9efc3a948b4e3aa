package desired

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/object"
)

// Refs lists the objects that a pod refers to, each once, those that may be missing too. What a claim is bound to is
// not among them: that depends on the claim. A pod of an API server comes with its priority, and with its claims made,
// so that it refers to no class of priorities and to no template.
func Refs(pod *corev1.Pod) []object.Ref {
	r := refs{namespace: pod.Namespace}
	s, static := &pod.Spec, OriginOf(pod) != API
	for _, p := range s.ImagePullSecrets {
		r.add(object.Secret, p.Name)
	}
	if s.RuntimeClassName != nil {
		r.add(object.RuntimeClass, *s.RuntimeClassName)
	}
	if static {
		r.add(object.PriorityClass, s.PriorityClassName)
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			r.container(&list[i])
		}
	}
	for i := range s.EphemeralContainers {
		r.container((*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		r.volume(v)
		// The claim that its template makes is to be in no manifest, and what it may be bound to concerns the pod like
		// a claim's volume.
		if v.Ephemeral != nil {
			r.add(object.PersistentVolumeClaim, object.ClaimName(pod, v.Name))
		}
	}
	for i := range s.ResourceClaims {
		c := &s.ResourceClaims[i]
		if static || c.ResourceClaimName != nil || claimed(pod, c.Name) {
			r.add(object.ResourceClaim, object.ResourceClaimName(pod, c))
		}
		if static && c.ResourceClaimTemplateName != nil {
			r.add(object.ResourceClaimTemplate, *c.ResourceClaimTemplateName)
		}
	}
	return r.list
}

// claimed says whether the status of a pod names the claim that was made for an entry.
func claimed(pod *corev1.Pod, entry string) bool {
	return slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool {
		return s.Name == entry
	})
}

type refs struct {
	namespace string
	list      []object.Ref
}

func (r *refs) add(k object.Kind, name string) {
	ref := object.RefTo(k, r.namespace, name)
	if name != "" && !slices.Contains(r.list, ref) {
		r.list = append(r.list, ref)
	}
}

func (r *refs) container(c *corev1.Container) {
	for _, f := range c.EnvFrom {
		if f.ConfigMapRef != nil {
			r.add(object.ConfigMap, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			r.add(object.Secret, f.SecretRef.Name)
		}
	}
	for i := range c.Env {
		switch from := c.Env[i].ValueFrom; {
		case from == nil:
		case from.ConfigMapKeyRef != nil:
			r.add(object.ConfigMap, from.ConfigMapKeyRef.Name)
		case from.SecretKeyRef != nil:
			r.add(object.Secret, from.SecretKeyRef.Name)
		}
	}
}

func (r *refs) volume(v *corev1.Volume) {
	for _, name := range secretsOf(v) {
		r.add(object.Secret, name)
	}
	switch {
	case v.ConfigMap != nil:
		r.add(object.ConfigMap, v.ConfigMap.Name)
	case v.Secret != nil:
		r.add(object.Secret, v.Secret.SecretName)
	case v.CSI != nil:
		r.add(object.CSIDriver, v.CSI.Driver)
	case v.PersistentVolumeClaim != nil:
		r.add(object.PersistentVolumeClaim, v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.ConfigMap != nil {
				r.add(object.ConfigMap, p.ConfigMap.Name)
			}
			if p.Secret != nil {
				r.add(object.Secret, p.Secret.Name)
			}
			if t := p.ClusterTrustBundle; t != nil && t.Name != nil {
				r.add(object.ClusterTrustBundle, *t.Name)
			}
		}
	}
}

// Trusts says whether a pod has the trust bundles of a signer in a volume, whatever they are called: [Refs] does not
// have those.
func Trusts(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
			return p.ClusterTrustBundle != nil && p.ClusterTrustBundle.SignerName != nil
		})
	})
}
