package api

import (
	"reflect"
	"slices"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// The bounds of a StorageClass's parameters.
const (
	maxParameters    = 512
	maxParameterSize = 256 << 10 // bytes of all keys and values
)

func setStorageClassDefaults(o *storagev1.StorageClass) {
	orNew(&o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	orNew(&o.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

// validateProvisioning checks the objects that volumes and snapshots are made by.
func validateProvisioning(object metav1.Object) field.ErrorList {
	switch o := object.(type) {
	case *storagev1.StorageClass:
		errs := validateStorageClass(o)
		for i, t := range o.AllowedTopologies {
			if len(t.MatchLabelExpressions) == 0 {
				errs = append(errs, field.Required(field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions"), "a term without any matches nothing"))
			}
		}
		return errs
	case *snapshotv1.VolumeSnapshotClass:
		errs := driverName(field.NewPath("driver"), o.Driver)
		errs = append(errs, parameters(o.Parameters)...)
		return append(errs, check.OneOf(field.NewPath("deletionPolicy"), o.DeletionPolicy, snapshotv1.VolumeSnapshotContentDelete,
			snapshotv1.VolumeSnapshotContentRetain)...)
	case *snapshotv1.VolumeSnapshot:
		return validateSnapshot(o)
	case *snapshotv1.VolumeSnapshotContent:
		return validateSnapshotContent(o)
	case *groupsnapshotv1.VolumeGroupSnapshotClass:
		errs := driverName(field.NewPath("driver"), o.Driver)
		errs = append(errs, parameters(o.Parameters)...)
		return append(errs, check.OneOf(field.NewPath("deletionPolicy"), o.DeletionPolicy, snapshotv1.VolumeSnapshotContentDelete,
			snapshotv1.VolumeSnapshotContentRetain)...)
	case *groupsnapshotv1.VolumeGroupSnapshot:
		return validateGroupSnapshot(o)
	case *storagev1.VolumeAttributesClass:
		errs := driverName(field.NewPath("driverName"), o.DriverName)
		if len(o.Parameters) == 0 {
			return append(errs, field.Required(field.NewPath("parameters"), "must contain at least one key/value pair"))
		}
		return append(errs, parameters(o.Parameters)...)
	}
	return nil
}

func validateStorageClass(o *storagev1.StorageClass) field.ErrorList {
	errs := check.Required(field.NewPath("provisioner"), o.Provisioner)
	errs = append(errs, parameters(o.Parameters)...)
	errs = append(errs, check.OneOf(field.NewPath("reclaimPolicy"), *o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRetain)...)
	errs = append(errs, check.OneOf(field.NewPath("volumeBindingMode"), *o.VolumeBindingMode, storagev1.VolumeBindingImmediate,
		storagev1.VolumeBindingWaitForFirstConsumer)...)
	return append(errs, topologies(field.NewPath("allowedTopologies"), o.AllowedTopologies)...)
}

// topologies checks where volumes may be made.
func topologies(path *field.Path, terms []corev1.TopologySelectorTerm) field.ErrorList {
	var errs field.ErrorList
	for i, term := range terms {
		at := path.Index(i).Child("matchLabelExpressions")
		same := func(t corev1.TopologySelectorTerm) bool { return reflect.DeepEqual(t, term) }
		if slices.ContainsFunc(terms[:i], same) {
			errs = append(errs, field.Duplicate(at, ""))
		}
		seen := map[string]bool{}
		for j, e := range term.MatchLabelExpressions {
			for _, why := range validation.IsQualifiedName(e.Key) {
				errs = append(errs, field.Invalid(at.Index(j).Child("key"), e.Key, why))
			}
			if seen[e.Key] {
				errs = append(errs, field.Duplicate(at.Index(j).Child("key"), e.Key))
			}
			seen[e.Key] = true
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(at.Index(j).Child("values"), ""))
			}
		}
	}
	return errs
}

func parameters(all map[string]string) field.ErrorList {
	path := field.NewPath("parameters")
	if len(all) > maxParameters {
		return field.ErrorList{field.TooMany(path, len(all), maxParameters)}
	}
	size := 0
	var errs field.ErrorList
	for k, v := range all {
		size += len(k) + len(v)
		if k == "" {
			errs = append(errs, field.Invalid(path, k, "a name must not be empty"))
		}
	}
	if size > maxParameterSize {
		errs = append(errs, field.TooLong(path, "", maxParameterSize))
	}
	return errs
}

func validateSnapshot(o *snapshotv1.VolumeSnapshot) field.ErrorList {
	path := field.NewPath("spec", "source")
	claim, content := o.Spec.Source.PersistentVolumeClaimName, o.Spec.Source.VolumeSnapshotContentName
	var errs field.ErrorList
	switch {
	case (claim == nil) == (content == nil):
		errs = append(errs, field.Invalid(path, "", "must have exactly one of persistentVolumeClaimName and volumeSnapshotContentName"))
	case claim != nil:
		errs = append(errs, objectName(path.Child("persistentVolumeClaimName"), *claim)...)
	default:
		errs = append(errs, objectName(path.Child("volumeSnapshotContentName"), *content)...)
	}
	if c := o.Spec.VolumeSnapshotClassName; c != nil {
		errs = append(errs, objectName(field.NewPath("spec", "volumeSnapshotClassName"), *c)...)
	}
	return errs
}

func validateGroupSnapshot(o *groupsnapshotv1.VolumeGroupSnapshot) field.ErrorList {
	path := field.NewPath("spec", "source")
	selector, content := o.Spec.Source.Selector, o.Spec.Source.VolumeGroupSnapshotContentName
	var errs field.ErrorList
	switch {
	case content != nil:
		errs = append(errs, field.Forbidden(path.Child("volumeGroupSnapshotContentName"),
			"snapshots that are there already come in by a VolumeSnapshotContent each"))
	case selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0:
		// An empty one selects every claim of the namespace, which nobody who means it leaves out.
		errs = append(errs, field.Required(path.Child("selector"), "has to select claims by their labels"))
	default:
		errs = append(errs, metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	if c := o.Spec.VolumeGroupSnapshotClassName; c != nil {
		errs = append(errs, objectName(field.NewPath("spec", "volumeGroupSnapshotClassName"), *c)...)
	}
	return errs
}

func validateSnapshotContent(o *snapshotv1.VolumeSnapshotContent) field.ErrorList {
	path := field.NewPath("spec")
	errs := driverName(path.Child("driver"), o.Spec.Driver)
	errs = append(errs, check.OneOf(path.Child("deletionPolicy"), o.Spec.DeletionPolicy, snapshotv1.VolumeSnapshotContentDelete,
		snapshotv1.VolumeSnapshotContentRetain)...)
	source := path.Child("source")
	if o.Spec.Source.VolumeHandle != nil {
		errs = append(errs, field.Forbidden(source.Child("volumeHandle"), "a VolumeSnapshot has the claim that a snapshot is to be made of"))
	}
	if h := o.Spec.Source.SnapshotHandle; h == nil || *h == "" {
		errs = append(errs, field.Required(source.Child("snapshotHandle"), ""))
	}
	return errs
}
