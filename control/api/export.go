package api

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// MaxMilli is the largest number whose thousandths can still be counted.
const MaxMilli = math.MaxInt64 / 1000

// ValidateResourceName holds a name to what a container may ask for.
func ValidateResourceName(path *field.Path, name corev1.ResourceName) field.ErrorList {
	return resourceName(path, name)
}

// ValidateQuantity holds a quantity to what there can be of the resource.
func ValidateQuantity(path *field.Path, name corev1.ResourceName, q resource.Quantity) field.ErrorList {
	return quantity(path, name, q)
}

// Overcommits says whether limits may promise more of a resource than there is.
func Overcommits(name corev1.ResourceName) bool { return overcommits(name) }

// ValidateTolerations holds tolerations to their rules.
func ValidateTolerations(all []corev1.Toleration, path *field.Path) field.ErrorList {
	return validateTolerations(all, path)
}

// ValidateNodeSelector holds a selector of nodes to its rules; none is right.
func ValidateNodeSelector(s *corev1.NodeSelector, path *field.Path) field.ErrorList {
	return validateNodeSelector(s, path)
}

// ValidateTemplate holds the template of a pod to the rules of the API server.
func ValidateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabels(t.Labels, path.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, validateSpec(&corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}, path.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template"))
	}
	return errs
}

// ValidatePersistentVolumeSpec holds a volume that stands inside of an attachment to its rules.
func ValidatePersistentVolumeSpec(s *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	return validatePersistentVolume(s, path)
}

// SetPersistentVolumeSpecDefaults fills in what a volume misses.
func SetPersistentVolumeSpecDefaults(s *corev1.PersistentVolumeSpec) {
	or(&s.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	orNew(&s.VolumeMode, corev1.PersistentVolumeFilesystem)
	milli(s.Capacity)
	SetPersistentSourceDefaults(&s.PersistentVolumeSource)
}

// SetPersistentSourceDefaults fills in what the source of a volume misses.
func SetPersistentSourceDefaults(s *corev1.PersistentVolumeSource) {
	if s.HostPath != nil {
		orNew(&s.HostPath.Type, corev1.HostPathUnset)
	}
	if s.ISCSI != nil {
		or(&s.ISCSI.ISCSIInterface, "default")
	}
	if s.RBD != nil {
		or(&s.RBD.RBDPool, "rbd")
		or(&s.RBD.RadosUser, "admin")
		or(&s.RBD.Keyring, "/etc/ceph/keyring")
	}
	if s.AzureDisk != nil {
		orNew(&s.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		orNew(&s.AzureDisk.FSType, "ext4")
		orNew(&s.AzureDisk.ReadOnly, false)
		orNew(&s.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
	}
	if s.ScaleIO != nil {
		or(&s.ScaleIO.StorageMode, "ThinProvisioned")
		or(&s.ScaleIO.FSType, "xfs")
	}
}

// ValidateDriverName holds the name of a driver of devices to its rules.
func ValidateDriverName(path *field.Path, name string) field.ErrorList { return driverName(path, name) }

// ValidatePoolName holds the name of a pool of devices to its rules.
func ValidatePoolName(path *field.Path, name string) field.ErrorList { return poolName(path, name) }

// ValidateStorageClass holds what volumes are made by to the rules of the API server.
func ValidateStorageClass(o *storagev1.StorageClass) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&o.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if o.Provisioner != "" {
		errs = append(errs, check.Qualified(field.NewPath("provisioner"), strings.ToLower(o.Provisioner))...)
	}
	return append(errs, validateStorageClass(o)...)
}
