package volumebinder

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// act is what is to be done next with a claim or a volume.
type act int

const (
	nothing   act = iota
	bind          // the volume and the claim to each other, as far as they are not yet
	pend          // the claim waits
	lose          // the claim has lost its volume
	giveClass     // the claim is of the default class from now on
	provision     // the provisioner of the class is asked for a volume
	free          // the volume is there for whoever it matches, or whom it is meant for
	keep          // the volume is its claim's
	release       // the volume's claim is gone
	unbind        // the volume was given to a claim that has another one
	askClaim      // the claim goes on with the volume
	fail          // the volume cannot be given back as it asks for
)

// verdict is an act with what it is done to, and what people are told.
type verdict struct {
	act    act
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
	class  *storagev1.StorageClass
	tell   notice
}

// notice is an event, or none.
type notice struct {
	kind, reason, message string
}

func warn(reason, format string, args ...any) notice {
	return notice{corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...)}
}

func note(reason, format string, args ...any) notice {
	return notice{corev1.EventTypeNormal, reason, fmt.Sprintf(format, args...)}
}

// world is what is known of a cluster's storage. What is not there is nil.
type world interface {
	claim(namespace, name string) *corev1.PersistentVolumeClaim
	volume(name string) *corev1.PersistentVolume
	// candidates are the volumes of a class.
	candidates(class string) []*corev1.PersistentVolume
	class(name string) *storagev1.StorageClass
	defaultClass() *storagev1.StorageClass
	// waiting are the names of the pods that use a claim and have no node yet.
	waiting(*corev1.PersistentVolumeClaim) []string
}

// forClaim decides what a claim needs.
func forClaim(w world, claim *corev1.PersistentVolumeClaim) (verdict, error) {
	switch {
	case metav1.HasAnnotation(claim.ObjectMeta, volume.AnnBindCompleted):
		return forBound(w, claim), nil
	case claim.DeletionTimestamp != nil:
		return verdict{}, nil
	case claim.Spec.VolumeName != "":
		return forNamed(w, claim), nil
	}
	class := w.class(volume.GetPersistentVolumeClaimClass(claim))
	waits := class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	found, err := volume.FindMatchingVolume(claim, w.candidates(volume.GetPersistentVolumeClaimClass(claim)), nil, nil, waits, true)
	if err != nil {
		return verdict{}, fmt.Errorf("match claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if found != nil {
		return verdict{act: bind, claim: claim, volume: found}, nil
	}
	if !volume.PersistentVolumeClaimHasClass(claim) {
		if c := w.defaultClass(); c != nil {
			return verdict{act: giveClass, claim: claim, class: c}, nil
		}
	}
	return forUnmatched(w, claim, class, waits), nil
}

// forUnmatched decides on a claim for which there is no volume yet.
func forUnmatched(w world, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, waits bool) verdict {
	v := verdict{act: pend, claim: claim}
	name := volume.GetPersistentVolumeClaimClass(claim)
	switch {
	case waits && !volume.IsDelayBindingProvisioning(claim):
		v.tell = note("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
		if pods := w.waiting(claim); len(pods) == 1 {
			v.tell = note("WaitForPodScheduled", "waiting for pod %s to be scheduled", pods[0])
		} else if len(pods) > 1 {
			v.tell = note("WaitForPodScheduled", "waiting for pods %s to be scheduled", strings.Join(pods, ","))
		}
	case name == "":
		v.tell = note("FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	case class == nil:
		v.tell = warn("ProvisioningFailed", "storageclass.storage.k8s.io %q not found", name)
	case strings.HasPrefix(class.Provisioner, "kubernetes.io/"):
		// These were Kubernetes' own, but for the one that says that there is none.
		v.tell = warn("ProvisioningFailed", "no volume plugin matched name: %s", class.Provisioner)
	default:
		v.act, v.class = provision, class
		v.tell = note("ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '%s' or manually "+
			"by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly "+
			"registered.", class.Provisioner)
	}
	return v
}

// forNamed decides on a claim that asks for one volume by its name.
func forNamed(w world, claim *corev1.PersistentVolumeClaim) verdict {
	v := verdict{act: pend, claim: claim}
	found := w.volume(claim.Spec.VolumeName)
	switch {
	case found == nil:
	case found.Spec.ClaimRef == nil:
		if why := mismatch(claim, found); why != "" {
			v.tell = warn("VolumeMismatch", "Cannot bind to requested volume %q: %s", found.Name, why)
			return v
		}
		v.act, v.volume = bind, found
	case volume.IsVolumeBoundToClaim(found, claim):
		v.act, v.volume = bind, found
	default:
		v.tell = warn("FailedBinding", "volume %q already bound to a different claim.", found.Name)
	}
	return v
}

// forBound decides on a claim that has a volume.
func forBound(w world, claim *corev1.PersistentVolumeClaim) verdict {
	if claim.Spec.VolumeName == "" {
		return verdict{
			act: lose, claim: claim,
			tell: warn("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"),
		}
	}
	found := w.volume(claim.Spec.VolumeName)
	switch {
	case found == nil:
		return verdict{act: lose, claim: claim, tell: warn("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")}
	case found.Spec.ClaimRef == nil || found.Spec.ClaimRef.UID == claim.UID:
		return verdict{act: bind, claim: claim, volume: found}
	default:
		return verdict{
			act: lose, claim: claim,
			tell: warn("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"),
		}
	}
}

// mismatch says what of a volume is not as a claim that names it asks for.
func mismatch(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) string {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case has.Cmp(asked) < 0:
		return "requested PV is too small"
	case volume.GetPersistentVolumeClass(v) != volume.GetPersistentVolumeClaimClass(claim):
		return "storageClassName does not match"
	case volume.CheckVolumeModeMismatches(&claim.Spec, &v.Spec):
		return "incompatible volumeMode"
	case !volume.CheckAccessModes(claim, v):
		return "incompatible accessMode"
	case attributes(claim.Spec.VolumeAttributesClassName) != attributes(v.Spec.VolumeAttributesClassName):
		return "volumeAttributesClassName does not match"
	}
	return ""
}

func attributes(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}

// forVolume decides what a volume needs.
func forVolume(w world, v *corev1.PersistentVolume) verdict {
	ref := v.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		if ref != nil {
			if claim := w.claim(ref.Namespace, ref.Name); claim != nil {
				return verdict{act: free, volume: v, claim: claim}
			}
		}
		return verdict{act: free, volume: v}
	}
	claim := w.claim(ref.Namespace, ref.Name)
	switch {
	case claim == nil || claim.UID != ref.UID:
		return reclaim(v)
	case claim.Spec.VolumeName == v.Name:
		return verdict{act: keep, volume: v, claim: claim}
	case claim.Spec.VolumeName == "" && volume.CheckVolumeModeMismatches(&claim.Spec, &v.Spec):
		return verdict{volume: v, tell: warn("VolumeMismatch",
			"Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", claim.Name)}
	case claim.Spec.VolumeName == "":
		return verdict{act: askClaim, volume: v, claim: claim}
	case metav1.HasAnnotation(v.ObjectMeta, volume.AnnDynamicallyProvisioned) &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		// It was made for the claim, which has found another one.
		return reclaim(v)
	default:
		return verdict{act: unbind, volume: v}
	}
}

// reclaim decides on a volume whose claim is gone. What deletes volumes waits for them to be released.
func reclaim(v *corev1.PersistentVolume) verdict {
	switch v.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return verdict{act: release, volume: v}
	case corev1.PersistentVolumeReclaimDelete:
		by := v.Annotations[volume.AnnDynamicallyProvisioned]
		if metav1.HasAnnotation(v.ObjectMeta, volume.AnnMigratedTo) || by != "" && !strings.HasPrefix(by, "kubernetes.io/") ||
			by == "" && v.Spec.CSI != nil {
			return verdict{act: release, volume: v}
		}
		return verdict{act: fail, volume: v, tell: warn("VolumeFailedDelete",
			"error getting deleter volume plugin for volume %q: no deletable volume plugin matched", v.Name)}
	case corev1.PersistentVolumeReclaimRecycle:
		return verdict{act: fail, volume: v, tell: warn("VolumeFailedRecycle", "No recycler plugin found for the volume!")}
	default:
		return verdict{act: fail, volume: v, tell: warn("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")}
	}
}
