package api

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// validateVolumes returns the volumes by name, with what is wrong with them.
func validateVolumes(volumes []corev1.Volume, path *field.Path) (map[string]*corev1.Volume, field.ErrorList) {
	var errs field.ErrorList
	byName := map[string]*corev1.Volume{}
	names := sets.New[string]()
	for i := range volumes {
		v := &volumes[i]
		at := path.Index(i)
		errs = append(errs, requiredLabel(at.Child("name"), v.Name, names)...)
		errs = append(errs, oneSource(v.VolumeSource, at)...)
		errs = append(errs, validateSource(v, at)...)
		if v.Name != "" && byName[v.Name] == nil {
			byName[v.Name] = v
		}
	}
	return byName, errs
}

// oneSource wants exactly one of the many kinds of volumes: source is a struct of pointers, of a pod's or of a
// PersistentVolume.
func oneSource(source any, path *field.Path) field.ErrorList {
	var set []string
	s := reflect.ValueOf(source)
	for i := range s.NumField() {
		if !s.Field(i).IsNil() {
			name, _, _ := strings.Cut(s.Type().Field(i).Tag.Get("json"), ",")
			set = append(set, name)
		}
	}
	if len(set) == 0 {
		return field.ErrorList{field.Required(path, "must specify a volume type")}
	}
	var errs field.ErrorList
	for _, name := range set[1:] {
		errs = append(errs, field.Forbidden(path.Child(name), fmt.Sprintf("may not specify more than 1 volume type (%s is one)", set[0])))
	}
	return errs
}

func validateSource(v *corev1.Volume, path *field.Path) field.ErrorList {
	switch s := &v.VolumeSource; {
	case s.EmptyDir != nil:
		return validateEmptyDir(s.EmptyDir, path.Child("emptyDir"))
	case s.HostPath != nil:
		return validateHostPath(s.HostPath, path.Child("hostPath"))
	case s.Secret != nil:
		at := path.Child("secret")
		errs := check.Required(at.Child("secretName"), s.Secret.SecretName)
		errs = append(errs, fileMode(at.Child("defaultMode"), s.Secret.DefaultMode, true)...)
		errs = append(errs, fileUser(at.Child("defaultUser"), s.Secret.DefaultUser)...)
		return append(errs, keysToPaths(s.Secret.Items, at.Child("items"))...)
	case s.ConfigMap != nil:
		at := path.Child("configMap")
		errs := check.Required(at.Child("name"), s.ConfigMap.Name)
		errs = append(errs, fileMode(at.Child("defaultMode"), s.ConfigMap.DefaultMode, true)...)
		errs = append(errs, fileUser(at.Child("defaultUser"), s.ConfigMap.DefaultUser)...)
		return append(errs, keysToPaths(s.ConfigMap.Items, at.Child("items"))...)
	case s.DownwardAPI != nil:
		at := path.Child("downwardAPI")
		errs := fileMode(at.Child("defaultMode"), s.DownwardAPI.DefaultMode, true)
		errs = append(errs, fileUser(at.Child("defaultUser"), s.DownwardAPI.DefaultUser)...)
		return append(errs, downwardFiles(s.DownwardAPI.Items, at.Child("items"))...)
	case s.Projected != nil:
		return validateProjected(s.Projected, path.Child("projected"))
	case s.PersistentVolumeClaim != nil:
		return check.Required(path.Child("persistentVolumeClaim", "claimName"), s.PersistentVolumeClaim.ClaimName)
	case s.Ephemeral != nil:
		return validateTemplate(s.Ephemeral, path.Child("ephemeral"))
	case s.CSI != nil:
		return validateCSI(s.CSI, path.Child("csi"))
	case s.Image != nil:
		errs := check.Required(path.Child("image", "reference"), s.Image.Reference)
		return append(errs, check.OneOfOrNone(path.Child("image", "pullPolicy"), s.Image.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)...)
	}
	return validateNetworkSource(&v.VolumeSource, path)
}

func validateEmptyDir(e *corev1.EmptyDirVolumeSource, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(path.Child("sizeLimit"), "must be a valid resource quantity: greater than or equal to 0"))
	}
	switch {
	case e.Medium == corev1.StorageMediumDefault, e.Medium == corev1.StorageMediumMemory, e.Medium == corev1.StorageMediumHugePages:
	case strings.HasPrefix(string(e.Medium), string(corev1.StorageMediumHugePagesPrefix)):
		if _, err := pageSize(strings.TrimPrefix(string(e.Medium), string(corev1.StorageMediumHugePagesPrefix))); err != nil {
			errs = append(errs, field.Invalid(path.Child("medium"), e.Medium, err.Error()))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("medium"), e.Medium,
			[]corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory, corev1.StorageMediumHugePages, "HugePages-<size>"}))
	}
	if m := e.Mode; m != nil && (*m < 0 || *m > 0o1777) {
		errs = append(errs, field.Invalid(path.Child("mode"), *m, "must be a number between 0 and 01777 (octal), both inclusive"))
	}
	return errs
}

func validateHostPath(h *corev1.HostPathVolumeSource, path *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(path.Child("path"), "")}
	}
	errs := noBackstep(path.Child("path"), h.Path)
	if h.Type == nil {
		return errs
	}
	return append(errs, check.OneOfOrNone(path.Child("type"), *h.Type, corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
		corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)...)
}

func fileMode(path *field.Path, mode *int32, must bool) field.ErrorList {
	switch {
	case mode == nil && must:
		return field.ErrorList{field.Required(path, "")}
	case mode != nil && (*mode < 0 || *mode > 0o777):
		return field.ErrorList{field.Invalid(path, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

func fileUser(path *field.Path, user *int64) field.ErrorList {
	if user == nil {
		return nil
	}
	return check.Invalid(path, *user, validation.IsValidUserID(*user))
}

func keysToPaths(items []corev1.KeyToPath, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, k := range items {
		at := path.Index(i)
		errs = append(errs, check.Required(at.Child("key"), k.Key)...)
		errs = append(errs, localPath(at.Child("path"), k.Path)...)
		errs = append(errs, fileMode(at.Child("mode"), k.Mode, false)...)
		errs = append(errs, fileUser(at.Child("user"), k.User)...)
	}
	return errs
}

func downwardFiles(items []corev1.DownwardAPIVolumeFile, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, f := range items {
		at := path.Index(i)
		errs = append(errs, localPath(at.Child("path"), f.Path)...)
		switch {
		case f.FieldRef != nil && f.ResourceFieldRef != nil:
			errs = append(errs, field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
		case f.FieldRef != nil:
			errs = append(errs, fieldRef(f.FieldRef, volumeFields, at.Child("fieldRef"))...)
		case f.ResourceFieldRef != nil:
			errs = append(errs, resourceRef(f.ResourceFieldRef, true, at.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
		}
		errs = append(errs, fileMode(at.Child("mode"), f.Mode, false)...)
		errs = append(errs, fileUser(at.Child("user"), f.User)...)
	}
	return errs
}

func validateTemplate(e *corev1.EphemeralVolumeSource, path *field.Path) field.ErrorList {
	at := path.Child("volumeClaimTemplate")
	if e.VolumeClaimTemplate == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := templateMeta(e.VolumeClaimTemplate.ObjectMeta, at.Child("metadata"))
	return append(errs, validateClaim(&e.VolumeClaimTemplate.Spec, at.Child("spec"))...)
}

// templateMeta takes of metadata only what becomes that of the claim.
func templateMeta(m metav1.ObjectMeta, path *field.Path) field.ErrorList {
	m.Labels, m.Annotations = nil, nil
	if reflect.DeepEqual(m, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "only labels and annotations may be set in a template")}
}
