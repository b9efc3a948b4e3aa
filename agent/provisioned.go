package agent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/csi/provision"
)

// provisionedBy is the annotation by which a cluster knows volumes that were made for their claims.
const provisionedBy = "pv.kubernetes.io/provisioned-by"

// persistent is the PersistentVolume of what was made for a claim.
func (p *provisioner) persistent(s *provision.State) *corev1.PersistentVolume {
	c := &s.Claim
	mode := corev1.PersistentVolumeFilesystem
	if c.Block {
		mode = corev1.PersistentVolumeBlock
	}
	policy := corev1.PersistentVolumeReclaimDelete
	if c.Class.Retain {
		policy = corev1.PersistentVolumeReclaimRetain
	}
	bytes := max(s.Bytes, c.Bytes)
	class := c.Class.Name
	if spec := p.specs[c.Ref]; spec != nil {
		// A claim that names no class, and has the default one, is to have its volume; and one that is being expanded,
		// too.
		class = ""
		if spec.StorageClassName != nil {
			class = *spec.StorageClassName
		}
		bytes = max(bytes, spec.Resources.Requests.Storage().Value())
	}
	out := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: string(object.PersistentVolume)},
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Annotations: map[string]string{provisionedBy: c.Class.Driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: string(object.PersistentVolumeClaim), Namespace: c.Namespace, Name: c.Name},
			PersistentVolumeReclaimPolicy: policy, StorageClassName: class, MountOptions: c.Class.MountOptions, VolumeMode: &mode,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: c.Class.Driver, VolumeHandle: s.Handle, FSType: s.FSType, VolumeAttributes: s.Context,
				ControllerPublishSecretRef: secretRef(s.Secrets.ControllerPublish), NodeStageSecretRef: secretRef(s.Secrets.NodeStage),
				NodePublishSecretRef: secretRef(s.Secrets.NodePublish), ControllerExpandSecretRef: secretRef(s.Secrets.ControllerExpand),
				NodeExpandSecretRef: secretRef(s.Secrets.NodeExpand),
			}},
		},
	}
	if s.Attributes != "" {
		out.Spec.VolumeAttributesClassName = &s.Attributes
	}
	for _, m := range c.AccessModes {
		out.Spec.AccessModes = append(out.Spec.AccessModes, corev1.PersistentVolumeAccessMode(m))
	}
	return out
}

func secretRef(r provision.Ref) *corev1.SecretReference {
	if r == (provision.Ref{}) {
		return nil
	}
	return &corev1.SecretReference{Namespace: r.Namespace, Name: r.Name}
}
