package api

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// longestDriver is how long the name of a CSI driver may be (CSI, GetPluginInfo).
const longestDriver = 63

// driverNameRule is the rule for names of CSI drivers, which may have capital letters.
func driverNameRule(name string, _ bool) []string {
	errs := validation.IsDNS1123Subdomain(strings.ToLower(name))
	if len(name) > longestDriver {
		errs = append(errs, validation.MaxLenError(longestDriver))
	}
	return errs
}

func validateCSI(c *corev1.CSIVolumeSource, path *field.Path) field.ErrorList {
	errs := driverName(path.Child("driver"), c.Driver)
	if r := c.NodePublishSecretRef; r != nil {
		errs = append(errs, objectName(path.Child("nodePublishSecretRef", "name"), r.Name)...)
	}
	return errs
}

func validatePersistentCSI(c *corev1.CSIPersistentVolumeSource, path *field.Path) field.ErrorList {
	errs := driverName(path.Child("driver"), c.Driver)
	errs = append(errs, check.Required(path.Child("volumeHandle"), c.VolumeHandle)...)
	for _, r := range []struct {
		name string
		ref  *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", c.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", c.ControllerExpandSecretRef},
		{"nodeStageSecretRef", c.NodeStageSecretRef},
		{"nodePublishSecretRef", c.NodePublishSecretRef},
		{"nodeExpandSecretRef", c.NodeExpandSecretRef},
	} {
		if r.ref == nil {
			continue
		}
		errs = append(errs, check.Required(path.Child(r.name, "name"), r.ref.Name)...)
		errs = append(errs, check.Required(path.Child(r.name, "namespace"), r.ref.Namespace)...)
	}
	return errs
}

// setDriverDefaults has a driver attach, and its volumes persist.
func setDriverDefaults(s *storagev1.CSIDriverSpec) {
	orNew(&s.AttachRequired, true)
	orNew(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	for _, flag := range []**bool{&s.PodInfoOnMount, &s.StorageCapacity, &s.RequiresRepublish, &s.SELinuxMount} {
		if *flag == nil {
			*flag = new(bool)
		}
	}
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

func validateDriver(o *storagev1.CSIDriver) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.Supported(path.Child("fsGroupPolicy"), *o.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
		storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy)
	for i, m := range o.Spec.VolumeLifecycleModes {
		errs = append(errs, check.Supported(path.Child("volumeLifecycleModes").Index(i), m, storagev1.VolumeLifecyclePersistent,
			storagev1.VolumeLifecycleEphemeral)...)
	}
	if p := o.Spec.NodeAllocatableUpdatePeriodSeconds; p != nil && *p < 10 {
		errs = append(errs, field.Invalid(path.Child("nodeAllocatableUpdatePeriodSeconds"), *p, "must be at least 10"))
	}
	return append(errs, tokenRequests(o.Spec.TokenRequests, path.Child("tokenRequests"))...)
}

func tokenRequests(all []storagev1.TokenRequest, path *field.Path) field.ErrorList {
	const least, most = 600, 1 << 32
	var errs field.ErrorList
	audiences := sets.New[string]()
	for i, r := range all {
		at := path.Index(i)
		if audiences.Has(r.Audience) {
			errs = append(errs, field.Duplicate(at.Child("audience"), r.Audience))
		}
		audiences.Insert(r.Audience)
		if e := r.ExpirationSeconds; e != nil && (*e < least || *e > most) {
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), *e, fmt.Sprintf("must be between %d and %d", least, int64(most))))
		}
	}
	return errs
}
