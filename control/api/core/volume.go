package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// SetPersistentVolumeDefaults fills in what is missing.
func SetPersistentVolumeDefaults(o *corev1.PersistentVolume) {
	api.SetObjectDefaults(o)
	Milli(o.Spec.Capacity)
	check.Or(&o.Status.Phase, corev1.VolumePending)
}

// ValidatePersistentVolume holds a new volume to its rules.
func ValidatePersistentVolume(o *corev1.PersistentVolume) field.ErrorList {
	return append(check.Meta(o, false, check.SubdomainName), api.ValidatePersistentVolumeSpec(&o.Spec, field.NewPath("spec"))...)
}

// ValidatePersistentVolumeUpdate holds a changed volume to its rules: where it is stored stays.
func ValidatePersistentVolumeUpdate(o, old *corev1.PersistentVolume) field.ErrorList {
	errs := ValidatePersistentVolume(o)
	errs = append(errs, check.MetaUpdate(o, old)...)
	path := field.NewPath("spec")
	now, was := o.Spec.PersistentVolumeSource.DeepCopy(), old.Spec.PersistentVolumeSource.DeepCopy()
	if now.CSI != nil && was.CSI != nil {
		// A driver learns to expand volumes, and its secrets move.
		if was.CSI.ControllerExpandSecretRef == nil {
			now.CSI.ControllerExpandSecretRef = nil
		}
		if was.CSI.NodeExpandSecretRef == nil {
			now.CSI.NodeExpandSecretRef = nil
		}
		now.CSI.ControllerExpandSecretRef, was.CSI.ControllerExpandSecretRef = nil, nil
		now.CSI.NodeExpandSecretRef, was.CSI.NodeExpandSecretRef = nil, nil
	}
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(path.Child("persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
	}
	errs = append(errs, check.Immutable(path.Child("volumeMode"), o.Spec.VolumeMode, old.Spec.VolumeMode)...)
	if old.Spec.VolumeAttributesClassName != nil && o.Spec.VolumeAttributesClassName == nil {
		errs = append(errs, field.Forbidden(path.Child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	if was := old.Spec.NodeAffinity; was != nil {
		errs = append(errs, check.Immutable(path.Child("nodeAffinity"), o.Spec.NodeAffinity, was)...)
	}
	return errs
}

// SetClaimDefaults fills in what is missing.
func SetClaimDefaults(o *corev1.PersistentVolumeClaim) {
	SetClaimSpecDefaults(&o.Spec)
	check.Or(&o.Status.Phase, corev1.ClaimPending)
	Milli(o.Status.Capacity)
	Milli(o.Status.AllocatedResources)
}

// SetClaimSpecDefaults fills in what a claim, or a template of one, misses.
func SetClaimSpecDefaults(s *corev1.PersistentVolumeClaimSpec) {
	check.OrNew(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	Milli(s.Resources.Limits)
	Milli(s.Resources.Requests)
	// What is cloned or restored is named by dataSource or dataSourceRef; the API server keeps both.
}

// ValidateClaim holds a new claim to its rules.
func ValidateClaim(o *corev1.PersistentVolumeClaim) field.ErrorList {
	return api.ValidateObject(o, true)
}

// ValidateClaimUpdate holds a changed claim to its rules: a bound one may grow, and choose another class of attributes.
func ValidateClaimUpdate(o, old *corev1.PersistentVolumeClaim) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), ValidateClaim(o)...)
	path := field.NewPath("spec")
	now, was := o.Spec.DeepCopy(), old.Spec.DeepCopy()
	// The binder names the volume once.
	if was.VolumeName == "" {
		was.VolumeName = now.VolumeName
	}
	if was.StorageClassName == nil && now.StorageClassName != nil && old.Annotations[corev1.BetaStorageClassAnnotation] == "" {
		// A claim without a class gets the default one later.
		if old.Spec.VolumeName == "" {
			was.StorageClassName = now.StorageClassName
		}
	}
	request, before := now.Resources.Requests[corev1.ResourceStorage], was.Resources.Requests[corev1.ResourceStorage]
	if o.Status.Phase == corev1.ClaimBound && now.Resources.Requests != nil {
		now.Resources.Requests[corev1.ResourceStorage] = before
	}
	now.VolumeAttributesClassName, was.VolumeAttributesClassName = nil, nil
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(path, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	if have := old.Status.Capacity[corev1.ResourceStorage]; request.Cmp(before) < 0 && request.Cmp(have) <= 0 {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	errs = append(errs, check.Immutable(path.Child("volumeMode"), o.Spec.VolumeMode, old.Spec.VolumeMode)...)
	return errs
}
