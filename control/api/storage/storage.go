// Package storage has the defaults and rules of classes, drivers, attachments and capacities of storage.
package storage

import (
	"maps"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

const (
	maxError      = 1024 // characters of an error that is attached to an object
	maxMetadata   = 256 << 10
	maxParameters = 512
	maxParamSize  = 256 << 10
	maxDriverName = 63
	maxNodeID     = 256
)

// ValidateStorageClass holds a new class to its rules.
func ValidateStorageClass(o *storagev1.StorageClass) field.ErrorList {
	return api.ValidateStorageClass(o)
}

// ValidateStorageClassUpdate holds a changed class to its rules: what volumes were made by stays.
func ValidateStorageClassUpdate(o, old *storagev1.StorageClass) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), ValidateStorageClass(o)...)
	errs = append(errs, check.Immutable(field.NewPath("parameters"), o.Parameters, old.Parameters)...)
	errs = append(errs, check.Immutable(field.NewPath("provisioner"), o.Provisioner, old.Provisioner)...)
	errs = append(errs, check.Immutable(field.NewPath("reclaimPolicy"), o.ReclaimPolicy, old.ReclaimPolicy)...)
	return append(errs, check.Immutable(field.NewPath("volumeBindingMode"), o.VolumeBindingMode, old.VolumeBindingMode)...)
}

// ValidateDriver holds a new driver to its rules.
func ValidateDriver(o *storagev1.CSIDriver) field.ErrorList { return api.ValidateObject(o, false) }

// ValidateDriverUpdate holds a changed driver to its rules.
func ValidateDriverUpdate(o, old *storagev1.CSIDriver) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), ValidateDriver(o)...)
	path := field.NewPath("spec")
	errs = append(errs, check.Immutable(path.Child("attachedRequired"), o.Spec.AttachRequired, old.Spec.AttachRequired)...)
	return append(errs, check.Immutable(path.Child("volumeLifecycleModes"), o.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)...)
}

// ValidateCSINode holds what a node has of drivers to its rules.
func ValidateCSINode(o *storagev1.CSINode) field.ErrorList {
	return append(check.Meta(o, false, check.SubdomainName), nodeDrivers(o.Spec.Drivers)...)
}

// ValidateCSINodeUpdate holds changed drivers of a node to their rules: a driver comes and goes, but does not change.
func ValidateCSINodeUpdate(o, old *storagev1.CSINode) field.ErrorList {
	errs := ValidateCSINode(o)
	for _, d := range o.Spec.Drivers {
		j := slices.IndexFunc(old.Spec.Drivers, func(was storagev1.CSINodeDriver) bool { return was.Name == d.Name })
		if j < 0 {
			continue
		}
		was := old.Spec.Drivers[j]
		// How many volumes a node takes is what a driver learns.
		was.Allocatable = d.Allocatable
		if !equality.Semantic.DeepEqual(d, was) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "drivers"), d, "a driver may not change, only come and go"))
		}
	}
	return errs
}

func nodeDrivers(all []storagev1.CSINodeDriver) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, d := range all {
		at := field.NewPath("spec", "drivers").Index(i)
		errs = append(errs, driverName(d.Name, at.Child("name"))...)
		switch n := len(d.NodeID); {
		case n == 0:
			errs = append(errs, field.Required(at.Child("nodeID"), ""))
		case n > maxNodeID:
			errs = append(errs, field.Invalid(at.Child("nodeID"), d.NodeID, validation.MaxLenError(maxNodeID)))
		}
		if a := d.Allocatable; a != nil && a.Count != nil && *a.Count < 0 {
			errs = append(errs, field.Invalid(at.Child("allocatable", "count"), *a.Count, "must be greater than or equal to 0"))
		}
		keys := sets.New[string]()
		for _, k := range d.TopologyKeys {
			if k == "" {
				errs = append(errs, field.Required(at, ""))
			}
			if keys.Has(k) {
				errs = append(errs, field.Duplicate(at, k))
			}
			keys.Insert(k)
			errs = append(errs, check.Qualified(at, k)...)
		}
		if names.Has(d.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), d.Name))
		}
		names.Insert(d.Name)
	}
	return errs
}

func driverName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > maxDriverName {
		errs = append(errs, field.TooLong(path, name, maxDriverName))
	}
	return append(errs, check.Invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

// ValidateAttachment holds a new attachment to its rules.
func ValidateAttachment(o *storagev1.VolumeAttachment) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), attachment(o)...)
	return append(errs, named(o)...)
}

func named(o *storagev1.VolumeAttachment) field.ErrorList {
	errs := driverName(o.Spec.Attacher, field.NewPath("spec.attacher"))
	if n := o.Spec.Source.PersistentVolumeName; n != nil {
		errs = append(errs, check.Invalid(field.NewPath("spec.source.persistentVolumeName"), *n, validation.IsDNS1123Subdomain(*n))...)
	}
	return errs
}

// ValidateAttachmentUpdate holds a changed attachment to its rules: what is attached where stays.
func ValidateAttachmentUpdate(o, old *storagev1.VolumeAttachment) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), attachment(o)...)
	errs = append(errs, named(o)...)
	if !equality.Semantic.DeepEqual(o.Spec, old.Spec) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), o.Spec, "field is immutable"))
	}
	return errs
}

func attachment(o *storagev1.VolumeAttachment) field.ErrorList {
	spec := field.NewPath("spec")
	errs := check.Required(spec.Child("attacher"), o.Spec.Attacher)
	source := spec.Child("source")
	switch s := o.Spec.Source; {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		errs = append(errs, field.Required(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		errs = append(errs, field.Forbidden(source, "must specify exactly one of inlineVolumeSpec and persistentVolumeName"))
	case s.PersistentVolumeName != nil && *s.PersistentVolumeName == "":
		errs = append(errs, field.Required(source.Child("persistentVolumeName"), "must specify non empty persistentVolumeName"))
	case s.InlineVolumeSpec != nil:
		errs = append(errs, api.ValidatePersistentVolumeSpec(s.InlineVolumeSpec, source.Child("inlineVolumeSpec"))...)
	}
	errs = append(errs, check.Invalid(spec.Child("nodeName"), o.Spec.NodeName, validation.IsDNS1123Subdomain(o.Spec.NodeName))...)
	status := field.NewPath("status")
	size := 0
	for k, v := range o.Status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxMetadata {
		errs = append(errs, field.TooLong(status.Child("attachmentMetadata"), "", maxMetadata))
	}
	for _, e := range []struct {
		name string
		e    *storagev1.VolumeError
	}{{"attachError", o.Status.AttachError}, {"detachError", o.Status.DetachError}} {
		if e.e == nil {
			continue
		}
		if len(e.e.Message) > maxError {
			errs = append(errs, field.TooLong(status.Child(e.name, "message"), "", maxError))
		}
		if c := e.e.ErrorCode; c != nil && *c < 0 {
			errs = append(errs, field.Invalid(status.Child(e.name, "errorCode"), *c, "must be greater than or equal to 0"))
		}
	}
	return errs
}

// ValidateAttributesClass holds a new class to its rules.
func ValidateAttributesClass(o *storagev1.VolumeAttributesClass) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), driverOf(o.DriverName)...)
	path := field.NewPath("parameters")
	if len(o.Parameters) == 0 {
		return append(errs, field.Required(path, "must contain at least one key/value pair"))
	}
	size := 0
	for k, v := range o.Parameters {
		if k == "" {
			errs = append(errs, field.Invalid(path, k, "field can not be empty."))
		}
		size += len(k) + len(v)
	}
	if len(o.Parameters) > maxParameters {
		errs = append(errs, field.TooLong(path, "", maxParameters))
	} else if size > maxParamSize {
		errs = append(errs, field.TooLong(path, "", maxParamSize))
	}
	return errs
}

func driverOf(name string) field.ErrorList {
	path := field.NewPath("driverName")
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return check.Qualified(path, strings.ToLower(name))
}

// ValidateAttributesClassUpdate holds a changed class to its rules: only metadata changes.
func ValidateAttributesClassUpdate(o, old *storagev1.VolumeAttributesClass) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), ValidateAttributesClass(o)...)
	if o.DriverName != old.DriverName {
		errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
	}
	if !maps.Equal(o.Parameters, old.Parameters) {
		errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
	}
	return errs
}

// ValidateCapacity holds a new capacity to its rules.
func ValidateCapacity(o *storagev1.CSIStorageCapacity) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	errs = append(errs, check.Selector(field.NewPath("nodeTopology"), o.NodeTopology)...)
	path := field.NewPath("storageClassName")
	errs = append(errs, check.Invalid(path, o.StorageClassName, validation.IsDNS1123Subdomain(o.StorageClassName))...)
	if c := o.Capacity; c != nil && c.Sign() < 0 {
		errs = append(errs, field.Invalid(field.NewPath("capacity"), c.String(), "must be greater than or equal to 0"))
	}
	return errs
}

// ValidateCapacityUpdate holds a changed capacity to its rules: what it is of stays.
func ValidateCapacityUpdate(o, old *storagev1.CSIStorageCapacity) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), ValidateCapacity(o)...)
	errs = append(errs, check.Immutable(field.NewPath("nodeTopology"), o.NodeTopology, old.NodeTopology)...)
	return append(errs, check.Immutable(field.NewPath("storageClassName"), o.StorageClassName, old.StorageClassName)...)
}

// SetAttachmentDefaults fills in what a volume inside of an attachment misses.
func SetAttachmentDefaults(o *storagev1.VolumeAttachment) {
	if s := o.Spec.Source.InlineVolumeSpec; s != nil {
		api.SetPersistentSourceDefaults(&s.PersistentVolumeSource)
	}
}
