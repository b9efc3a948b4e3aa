package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// maxObjectData is what the values of a ConfigMap or a Secret may have together, in bytes.
const maxObjectData = 1 << 20

// Priorities up to this one are the users'; those above belong to the two classes of the system.
const highestUserPriority = 1_000_000_000

// SetObjectDefaults fills in what the API server would for one of the kinds that [ValidateObject] knows.
func SetObjectDefaults(object metav1.Object) {
	switch o := object.(type) {
	case *corev1.Secret:
		or(&o.Type, corev1.SecretTypeOpaque)
		// Written only, never read: what is in it overrides the data.
		if len(o.StringData) > 0 && o.Data == nil {
			o.Data = map[string][]byte{}
		}
		for k, v := range o.StringData {
			o.Data[k] = []byte(v)
		}
		o.StringData = nil
	case *corev1.PersistentVolume:
		SetPersistentVolumeSpecDefaults(&o.Spec)
	case *corev1.PersistentVolumeClaim:
		orNew(&o.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	case *resourcev1.ResourceClaim:
		setDeviceDefaults(&o.Spec)
	case *resourcev1.ResourceClaimTemplate:
		setDeviceDefaults(&o.Spec.Spec)
	case *schedulingv1.PriorityClass:
		orNew(&o.PreemptionPolicy, corev1.PreemptLowerPriority)
	case *storagev1.CSIDriver:
		setDriverDefaults(&o.Spec)
	case *storagev1.StorageClass:
		setStorageClassDefaults(o)
	}
}

// ValidateObject holds a ConfigMap, Secret, PersistentVolume, PersistentVolumeClaim, ResourceClaim or template of one,
// RuntimeClass, PriorityClass, CSIDriver, StorageClass, VolumeAttributesClass or one of snapshots to the rules of the
// API server for a create, a ResourceClaim's allocation to those for its status. Its errors tell no value of a Secret.
func ValidateObject(object metav1.Object, namespaced bool) field.ErrorList {
	meta := field.NewPath("metadata")
	nameRule := apivalidation.NameIsDNSSubdomain
	if _, ok := object.(*storagev1.CSIDriver); ok {
		nameRule = driverNameRule
	}
	errs := apivalidation.ValidateObjectMetaAccessor(object, namespaced, nameRule, meta)
	switch o := object.(type) {
	case *corev1.ConfigMap:
		errs = append(errs, validateConfigMap(o)...)
	case *corev1.Secret:
		errs = append(errs, validateSecret(o)...)
	case *corev1.PersistentVolume:
		errs = append(errs, validatePersistentVolume(&o.Spec, field.NewPath("spec"))...)
		if r := o.Spec.ClaimRef; r != nil {
			errs = append(errs, needs(field.NewPath("spec", "claimRef"), need{"namespace", r.Namespace}, need{"name", r.Name})...)
		}
	case *corev1.PersistentVolumeClaim:
		errs = append(errs, validateClaim(&o.Spec, field.NewPath("spec"))...)
	case *resourcev1.ResourceClaim:
		all, bad := validateDeviceClaim(&o.Spec.Devices, field.NewPath("spec", "devices"))
		errs = append(errs, bad...)
		if a := o.Status.Allocation; a != nil && len(bad) == 0 {
			errs = append(errs, validateAllocation(a, all, field.NewPath("status", "allocation"))...)
		}
	case *resourcev1.ResourceClaimTemplate:
		_, bad := validateDeviceClaim(&o.Spec.Spec.Devices, field.NewPath("spec", "spec", "devices"))
		errs = append(errs, templateMeta(o.Spec.ObjectMeta, field.NewPath("spec", "metadata"))...)
		errs = append(errs, bad...)
	case *nodev1.RuntimeClass:
		errs = append(errs, validateRuntimeClass(o)...)
	case *schedulingv1.PriorityClass:
		errs = append(errs, validatePriorityClass(o)...)
	case *storagev1.CSIDriver:
		errs = append(errs, validateDriver(o)...)
	default:
		errs = append(errs, validateProvisioning(object)...)
	}
	return errs
}

func validateConfigMap(o *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for _, k := range slices.Sorted(maps.Keys(o.Data)) {
		at := field.NewPath("data").Key(k)
		errs = append(errs, check.Invalid(at, k, validation.IsConfigMapKey(k))...)
		if _, both := o.BinaryData[k]; both {
			errs = append(errs, field.Invalid(at, k, "duplicate of key present in binaryData"))
		}
		size += len(o.Data[k])
	}
	for _, k := range slices.Sorted(maps.Keys(o.BinaryData)) {
		errs = append(errs, check.Invalid(field.NewPath("binaryData").Key(k), k, validation.IsConfigMapKey(k))...)
		size += len(o.BinaryData[k])
	}
	return append(errs, dataSize(size)...)
}

func dataSize(size int) field.ErrorList {
	if size <= maxObjectData {
		return nil
	}
	return field.ErrorList{field.TooLong(field.NewPath("data"), "", maxObjectData)}
}

func validateSecret(o *corev1.Secret) field.ErrorList {
	var errs field.ErrorList
	data := field.NewPath("data")
	size := 0
	for _, k := range slices.Sorted(maps.Keys(o.Data)) {
		errs = append(errs, check.Invalid(data.Key(k), k, validation.IsConfigMapKey(k))...)
		size += len(o.Data[k])
	}
	errs = append(errs, dataSize(size)...)
	must := func(keys ...string) {
		for _, k := range keys {
			if _, ok := o.Data[k]; !ok {
				errs = append(errs, field.Required(data.Key(k), fmt.Sprintf("a secret of type %s has it", o.Type)))
			}
		}
	}
	switch o.Type {
	case corev1.SecretTypeDockerConfigJson:
		must(corev1.DockerConfigJsonKey)
		errs = append(errs, isJSON(data.Key(corev1.DockerConfigJsonKey), o.Data[corev1.DockerConfigJsonKey])...)
	case corev1.SecretTypeDockercfg:
		must(corev1.DockerConfigKey)
		errs = append(errs, isJSON(data.Key(corev1.DockerConfigKey), o.Data[corev1.DockerConfigKey])...)
	case corev1.SecretTypeBasicAuth:
		_, user := o.Data[corev1.BasicAuthUsernameKey]
		if _, password := o.Data[corev1.BasicAuthPasswordKey]; !user && !password {
			must(corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		must(corev1.SSHAuthPrivateKey)
	case corev1.SecretTypeTLS:
		must(corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	return errs
}

func isJSON(path *field.Path, data []byte) field.ErrorList {
	if len(data) == 0 || json.Valid(data) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, "<secret contents redacted>", "must be JSON")}
}

func validatePersistentVolume(s *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	errs := accessModes(s.AccessModes, path.Child("accessModes"))
	errs = append(errs, capacity(s, path.Child("capacity"))...)
	errs = append(errs, oneSource(s.PersistentVolumeSource, path)...)
	errs = append(errs, check.OneOf(path.Child("persistentVolumeReclaimPolicy"), s.PersistentVolumeReclaimPolicy,
		corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle)...)
	errs = append(errs, check.Subdomain(path.Child("storageClassName"), s.StorageClassName)...)
	errs = append(errs, check.OneOf(path.Child("volumeMode"), *s.VolumeMode, corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock)...)
	if c := s.VolumeAttributesClassName; c != nil {
		errs = append(errs, objectName(path.Child("volumeAttributesClassName"), *c)...)
		if s.CSI == nil {
			errs = append(errs, field.Required(path.Child("csi"), "has to be specified when using volumeAttributesClassName"))
		}
	}
	if a := s.NodeAffinity; a != nil {
		at := path.Child("nodeAffinity", "required")
		if a.Required == nil {
			errs = append(errs, field.Required(at, "must specify required node constraints"))
		}
		errs = append(errs, validateNodeSelector(a.Required, at)...)
	}
	switch {
	case s.HostPath != nil:
		errs = append(errs, validateHostPath(s.HostPath, path.Child("hostPath"))...)
	case s.Local != nil:
		at := path.Child("local", "path")
		errs = append(errs, check.Required(at, s.Local.Path)...)
		errs = append(errs, noBackstep(at, s.Local.Path)...)
	case s.NFS != nil:
		errs = append(errs, validateNetworkSource(&corev1.VolumeSource{NFS: s.NFS}, path)...)
	case s.ISCSI != nil:
		errs = append(errs, validatePersistentISCSI(s.ISCSI, path.Child("iscsi"))...)
	case s.CSI != nil:
		errs = append(errs, validatePersistentCSI(s.CSI, path.Child("csi"))...)
	}
	return errs
}

func validateClaim(s *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	errs := accessModes(s.AccessModes, path.Child("accessModes"))
	errs = append(errs, storage(s.Resources.Requests, path.Child("resources", "requests"))...)
	errs = append(errs, metavalidation.ValidateLabelSelector(s.Selector, selectorOptions, path.Child("selector"))...)
	if c := s.VolumeAttributesClassName; c != nil && *c != "" {
		errs = append(errs, check.Subdomain(path.Child("volumeAttributesClassName"), *c)...)
	}
	errs = append(errs, dataSources(s, path)...)
	if s.StorageClassName != nil {
		errs = append(errs, check.Subdomain(path.Child("storageClassName"), *s.StorageClassName)...)
	}
	return append(errs, check.OneOf(path.Child("volumeMode"), *s.VolumeMode, corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock)...)
}

func accessModes(modes []corev1.PersistentVolumeAccessMode, path *field.Path) field.ErrorList {
	if len(modes) == 0 {
		return field.ErrorList{field.Required(path, "at least 1 access mode is required")}
	}
	var errs field.ErrorList
	for i, m := range modes {
		errs = append(errs, check.Supported(path.Index(i), m, corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOncePod)...)
	}
	if len(modes) > 1 && slices.Contains(modes, corev1.ReadWriteOncePod) {
		errs = append(errs, field.Forbidden(path, "ReadWriteOncePod cannot be combined with other access modes"))
	}
	return errs
}

// dataSources are what a claim's volume begins as: one thing under two names, of which the second may be of another
// namespace.
func dataSources(s *corev1.PersistentVolumeClaimSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	one := func(at *field.Path, group *string, kind, name string) {
		errs = append(errs, check.Required(at.Child("name"), name)...)
		errs = append(errs, check.Required(at.Child("kind"), kind)...)
		if group == nil || *group == "" {
			if kind != "PersistentVolumeClaim" {
				errs = append(errs, field.Invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
			}
			return
		}
		errs = append(errs, check.Subdomain(at.Child("apiGroup"), *group)...)
	}
	d, r := s.DataSource, s.DataSourceRef
	if d != nil {
		one(path.Child("dataSource"), d.APIGroup, d.Kind, d.Name)
	}
	if r == nil {
		return errs
	}
	one(path.Child("dataSourceRef"), r.APIGroup, r.Kind, r.Name)
	elsewhere := r.Namespace != nil && *r.Namespace != ""
	if elsewhere {
		errs = append(errs, check.Label(path.Child("dataSourceRef", "namespace"), *r.Namespace)...)
	}
	switch {
	case d == nil:
	case elsewhere:
		errs = append(errs, field.Invalid(path, path.Child("dataSource"), "may not be specified when dataSourceRef.namespace is specified"))
	case d.Kind != r.Kind || d.Name != r.Name || (d.APIGroup == nil) != (r.APIGroup == nil) || d.APIGroup != nil && *d.APIGroup != *r.APIGroup:
		errs = append(errs, field.Invalid(path, path.Child("dataSource"), "must match dataSourceRef"))
	}
	return errs
}

// capacity of a volume is its storage alone.
func capacity(s *corev1.PersistentVolumeSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Capacity) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	if _, ok := s.Capacity[corev1.ResourceStorage]; !ok || len(s.Capacity) > 1 {
		errs = append(errs, field.NotSupported(path, s.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Capacity)) {
		if q := s.Capacity[name]; q.Sign() <= 0 {
			errs = append(errs, field.Invalid(path.Key(string(name)), q.String(), "must be greater than zero"))
		}
	}
	return errs
}

func storage(list corev1.ResourceList, path *field.Path) field.ErrorList {
	q, ok := list[corev1.ResourceStorage]
	switch at := path.Key("storage"); {
	case !ok:
		return field.ErrorList{field.Required(at, "")}
	case q.Sign() <= 0:
		return field.ErrorList{field.Invalid(at, q.String(), "must be greater than zero")}
	}
	return nil
}

func validateRuntimeClass(o *nodev1.RuntimeClass) field.ErrorList {
	handler := field.NewPath("handler")
	errs := check.Required(handler, o.Handler)
	errs = append(errs, check.Label(handler, o.Handler)...)
	if o.Overhead != nil {
		at := field.NewPath("overhead", "podFixed")
		for _, name := range slices.Sorted(maps.Keys(o.Overhead.PodFixed)) {
			errs = append(errs, resourceName(at.Key(string(name)), name)...)
			errs = append(errs, quantity(at.Key(string(name)), name, o.Overhead.PodFixed[name])...)
		}
	}
	return errs
}

func validatePriorityClass(o *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	system := strings.HasPrefix(o.Name, "system-")
	switch {
	case system:
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "priority class names with 'system-' prefix are reserved for system use only"))
	case o.Value > highestUserPriority:
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %d", highestUserPriority)))
	}
	return append(errs, check.OneOf(field.NewPath("preemptionPolicy"), *o.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)...)
}
