package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// needs are the objects that a pod refers to, and what those refer to, as far as they are known: what a claim is bound
// to, and what it takes to mount that. A reference without a name is to all objects of the kind.
func (os *objects) needs(pod *corev1.Pod) map[object.Ref]bool {
	if terminal(pod) {
		return nil // nothing of it is started any more
	}
	out := map[object.Ref]bool{}
	for _, ref := range desired.Refs(pod) {
		if all(ref.Kind) {
			ref = object.Ref{Kind: ref.Kind}
		}
		out[ref] = true
		if ref.Kind == object.PersistentVolumeClaim {
			os.needsOfClaim(ref, out)
		}
	}
	if desired.Trusts(pod) {
		out[object.Ref{Kind: object.ClusterTrustBundle}] = true
	}
	// The Service of the API server itself is for pods that want no others (enableServiceLinks), too.
	out[object.Ref{Kind: object.Service}] = true
	return out
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (os *objects) needsOfClaim(claim object.Ref, out map[object.Ref]bool) {
	c, ok := os.have(claim).(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName == "" {
		return
	}
	volume := object.RefTo(object.PersistentVolume, "", c.Spec.VolumeName)
	out[volume] = true
	v, ok := os.have(volume).(*corev1.PersistentVolume)
	if !ok {
		return
	}
	for _, ref := range secretsOf(v, claim.Namespace) {
		out[ref] = true
	}
	csi := v.Spec.CSI
	if csi == nil {
		return
	}
	drivers := object.Ref{Kind: object.CSIDriver}
	out[drivers] = true
	e := os.entries[drivers]
	if e == nil || !e.answered {
		return
	}
	// A driver that says nothing of it has its volumes attached first.
	if d, ok := e.all[object.RefTo(object.CSIDriver, "", csi.Driver)].(*storagev1.CSIDriver); ok &&
		d.Spec.AttachRequired != nil && !*d.Spec.AttachRequired {
		return
	}
	out[object.RefTo(object.VolumeAttachment, "", object.AttachmentName(csi.VolumeHandle, csi.Driver, os.s.cfg.NodeName))] = true
}

// secretsOf are the Secrets that it takes on a node to mount a volume which a claim of the namespace is bound to.
func secretsOf(v *corev1.PersistentVolume, namespace string) []object.Ref {
	var refs []*corev1.SecretReference
	if c := v.Spec.CSI; c != nil {
		refs = append(refs, c.NodePublishSecretRef, c.NodeStageSecretRef, c.NodeExpandSecretRef)
	}
	if c := v.Spec.ISCSI; c != nil {
		refs = append(refs, c.SecretRef)
	}
	var out []object.Ref
	for _, r := range refs {
		if r == nil || r.Name == "" {
			continue
		}
		in := r.Namespace
		if in == "" {
			in = namespace
		}
		out = append(out, object.RefTo(object.Secret, in, r.Name))
	}
	return out
}

// have is an object as the server has it; nil: it has none, or has not said so yet.
func (os *objects) have(ref object.Ref) object.Object {
	if e := os.entries[ref]; e != nil {
		return e.object
	}
	return nil
}

// leads says whether what a pod needs depends on what objects of a kind say.
func leads(k object.Kind) bool {
	return k == object.PersistentVolumeClaim || k == object.PersistentVolume || k == object.CSIDriver
}
