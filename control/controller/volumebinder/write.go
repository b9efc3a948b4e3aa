package volumebinder

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// bind writes the volume before the claim, each with its phase: after a crash at any of the four writes what was
// written says whose the volume is, and the rest is done by the same steps.
func (b *binder) bind(ctx context.Context, v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	changed, dirty, err := volume.GetBindVolumeToClaim(v, claim)
	if err != nil {
		return fmt.Errorf("bind volume %s: %w", v.Name, err)
	}
	if dirty {
		if v, err = b.updateVolume(ctx, changed); err != nil {
			return err
		}
	}
	if v, err = b.volumePhase(ctx, v, corev1.VolumeBound, notice{}); err != nil {
		return err
	}
	_, done := claim.Annotations[volume.AnnBindCompleted]
	if claim.Spec.VolumeName != v.Name || !done {
		c := claim.DeepCopy()
		if c.Spec.VolumeName != v.Name {
			c.Spec.VolumeName = v.Name
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBoundByController, "yes")
		}
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBindCompleted, "yes")
		if claim, err = b.updateClaim(ctx, c); err != nil {
			return err
		}
	}
	return b.claimPhase(ctx, claim, v, corev1.ClaimBound, notice{}, false)
}

// claimPhase writes the phase of a claim, and what its volume is where it has one. People are told when the phase is
// another one, or always.
func (b *binder) claimPhase(ctx context.Context, claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume,
	phase corev1.PersistentVolumeClaimPhase, tell notice, always bool,
) error {
	c := claim.DeepCopy()
	c.Status.Phase = phase
	if v == nil {
		c.Status.AccessModes, c.Status.Capacity = nil, nil
		c.Status.CurrentVolumeAttributesClassName = nil
	} else {
		c.Status.AccessModes = v.Spec.AccessModes
		// What a bound claim has changes by its resizer, and the class of its attributes by its modifier.
		if claim.Status.Phase != corev1.ClaimBound {
			c.Status.Capacity = maps.Clone(c.Status.Capacity)
			if c.Status.Capacity == nil {
				c.Status.Capacity = corev1.ResourceList{}
			}
			if size, ok := v.Spec.Capacity[corev1.ResourceStorage]; ok {
				c.Status.Capacity[corev1.ResourceStorage] = size
			}
			c.Status.CurrentVolumeAttributesClassName = v.Spec.VolumeAttributesClassName
		}
	}
	same := claim.Status.Phase == phase && slices.Equal(claim.Status.AccessModes, c.Status.AccessModes) &&
		len(claim.Status.Capacity) == len(c.Status.Capacity)
	if !same {
		written, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write status of claim %s/%s: %w", c.Namespace, c.Name, err)
		}
		b.known.claims.Mutation(written)
	}
	if tell.reason != "" && (always || !same) {
		b.events.Event(claim, tell.kind, tell.reason, tell.message)
	}
	return nil
}

// volumePhase writes the phase of a volume, and why it has failed.
func (b *binder) volumePhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, tell notice) (*corev1.PersistentVolume, error) {
	if v.Status.Phase == phase && v.Status.Message == tell.message {
		return v, nil
	}
	c := v.DeepCopy()
	c.Status.Phase, c.Status.Message = phase, tell.message
	written, err := b.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write status of volume %s: %w", v.Name, err)
	}
	b.known.volumes.Mutation(written)
	if tell.reason != "" {
		b.events.Event(written, tell.kind, tell.reason, tell.message)
	}
	return written, nil
}

func (b *binder) updateVolume(ctx context.Context, v *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	written, err := b.client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write volume %s: %w", v.Name, err)
	}
	b.known.volumes.Mutation(written)
	return written, nil
}

func (b *binder) updateClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	written, err := b.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, c, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	b.known.claims.Mutation(written)
	return written, nil
}

// giveClass gives a claim the default class, which was not there when it was made.
func (b *binder) giveClass(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	c := claim.DeepCopy()
	c.Spec.StorageClassName = &class.Name
	_, err := b.updateClaim(ctx, c)
	return err
}

// provision asks the provisioner of a claim's class for a volume, by annotations that it looks for.
func (b *binder) provision(ctx context.Context, v verdict) error {
	by := v.class.Provisioner
	if v.claim.Annotations[volume.AnnStorageProvisioner] != by || v.claim.Annotations[volume.AnnBetaStorageProvisioner] != by {
		c := v.claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnStorageProvisioner, by)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnBetaStorageProvisioner, by)
		written, err := b.updateClaim(ctx, c)
		if err != nil {
			return err
		}
		v.claim = written
	}
	return b.claimPhase(ctx, v.claim, nil, corev1.ClaimPending, v.tell, true)
}

// unbind takes a volume back from a claim that has another one. Whom the user has meant it for it goes on to be for.
func (b *binder) unbind(ctx context.Context, v *corev1.PersistentVolume) error {
	c := v.DeepCopy()
	if metav1.HasAnnotation(v.ObjectMeta, volume.AnnBoundByController) {
		c.Spec.ClaimRef = nil
		delete(c.Annotations, volume.AnnBoundByController)
	} else {
		c.Spec.ClaimRef.UID = ""
	}
	written, err := b.updateVolume(ctx, c)
	if err != nil {
		return err
	}
	_, err = b.volumePhase(ctx, written, corev1.VolumeAvailable, notice{})
	return err
}

func (b *binder) liveClaim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	c, err := b.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find claim %s/%s: %w", namespace, name, err)
	}
	return c, nil
}

func (b *binder) liveVolume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	v, err := b.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find volume %s: %w", name, err)
	}
	return v, nil
}
