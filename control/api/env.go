package api

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

const maxEnvFileKey = 128

// What a container may be told of its own pod, by environment and by volume. They differ because addresses come after
// volumes, and a variable cannot hold a map.
var (
	envFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	volumeFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")

	containerResources = []string{
		"limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage",
	}
	divisors = map[string]sets.Set[string]{
		"cpu": sets.New("1m", "1"),
		"":    sets.New("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"),
	}
)

func (v containers) env(c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range c.Env {
		at := path.Child("env").Index(i)
		e := &c.Env[i]
		if e.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, check.Invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		}
		if e.ValueFrom != nil {
			errs = append(errs, v.valueFrom(e, at.Child("valueFrom"))...)
		}
	}
	for i, f := range c.EnvFrom {
		at := path.Child("envFrom").Index(i)
		if f.Prefix != "" {
			errs = append(errs, check.Invalid(at.Child("prefix"), f.Prefix, validation.IsRelaxedEnvVarName(f.Prefix))...)
		}
		n := 0
		if f.ConfigMapRef != nil {
			n++
			errs = append(errs, objectName(at.Child("configMapRef", "name"), f.ConfigMapRef.Name)...)
		}
		if f.SecretRef != nil {
			n++
			errs = append(errs, objectName(at.Child("secretRef", "name"), f.SecretRef.Name)...)
		}
		switch {
		case n == 0:
			errs = append(errs, field.Invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"))
		case n > 1:
			errs = append(errs, field.Invalid(at, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

// objectName holds a reference to naming something.
func objectName(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return check.Invalid(path, name, apivalidation.NameIsDNSSubdomain(name, false))
}

func (v containers) valueFrom(e *corev1.EnvVar, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	f, n := e.ValueFrom, 0
	if f.FieldRef != nil {
		n++
		errs = append(errs, fieldRef(f.FieldRef, envFields, path.Child("fieldRef"))...)
	}
	if f.ResourceFieldRef != nil {
		n++
		errs = append(errs, resourceRef(f.ResourceFieldRef, false, path.Child("resourceFieldRef"))...)
	}
	if r := f.ConfigMapKeyRef; r != nil {
		n++
		errs = append(errs, keyRef(r.Name, r.Key, path.Child("configMapKeyRef"))...)
	}
	if r := f.SecretKeyRef; r != nil {
		n++
		errs = append(errs, keyRef(r.Name, r.Key, path.Child("secretKeyRef"))...)
	}
	if r := f.FileKeyRef; r != nil {
		n++
		errs = append(errs, v.fileKeyRef(r, path.Child("fileKeyRef"))...)
	}
	switch {
	case n == 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(path, "", "may not be specified when `value` is not empty"))
	case n > 1:
		errs = append(errs, field.Invalid(path, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func keyRef(name, key string, path *field.Path) field.ErrorList {
	errs := objectName(path.Child("name"), name)
	if key == "" {
		return append(errs, field.Required(path.Child("key"), ""))
	}
	return append(errs, check.Invalid(path.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func (v containers) fileKeyRef(r *corev1.FileKeySelector, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Key == "" {
		errs = append(errs, field.Required(path.Child("key"), ""))
	} else {
		errs = append(errs, check.Invalid(path.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))...)
		if len(r.Key) > maxEnvFileKey {
			errs = append(errs, field.TooLong(path.Child("key"), r.Key, maxEnvFileKey))
		}
	}
	errs = append(errs, localPath(path.Child("path"), r.Path)...)
	if r.VolumeName == "" {
		return append(errs, field.Required(path.Child("volumeName"), ""))
	}
	switch vol := v.volumes[r.VolumeName]; {
	case vol == nil:
		errs = append(errs, field.NotFound(path.Child("volumeName"), r.VolumeName))
	case vol.EmptyDir == nil:
		errs = append(errs, field.Invalid(path.Child("volumeName"), r.VolumeName, "must be an emptyDir volume"))
	}
	return errs
}

func fieldRef(f *corev1.ObjectFieldSelector, supported sets.Set[string], path *field.Path) field.ErrorList {
	if f.APIVersion == "" {
		return field.ErrorList{field.Required(path.Child("apiVersion"), "")}
	}
	if f.FieldPath == "" {
		return field.ErrorList{field.Required(path.Child("fieldPath"), "")}
	}
	at := path.Child("fieldPath")
	if f.APIVersion != "v1" {
		return field.ErrorList{field.Invalid(at, f.FieldPath, fmt.Sprintf("unsupported pod version: %s", f.APIVersion))}
	}
	name, key, has := subscript(f.FieldPath)
	if !has {
		if supported.Has(f.FieldPath) {
			return nil
		}
		return field.ErrorList{field.NotSupported(at, f.FieldPath, sets.List(supported))}
	}
	switch name {
	case "metadata.annotations":
		// Keys of annotations are compared as if in lower case, but kept as they are.
		return check.Invalid(at, f.FieldPath, content.IsLabelKey(strings.ToLower(key)))
	case "metadata.labels":
		return check.Invalid(at, f.FieldPath, content.IsLabelKey(key))
	}
	return field.ErrorList{field.Invalid(at, f.FieldPath, "does not support subscript")}
}

// subscript splits metadata.labels['key'].
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	key, closed := strings.CutSuffix(rest, "']")
	if !ok || !closed || name == "" {
		return path, "", false
	}
	return name, key, true
}

// resourceRef validates a reference to a container's resources; in a volume it must say which container's.
func resourceRef(f *corev1.ResourceFieldSelector, volume bool, path *field.Path) field.ErrorList {
	switch {
	case volume && f.ContainerName == "":
		return field.ErrorList{field.Required(path.Child("containerName"), "")}
	case f.Resource == "":
		return field.ErrorList{field.Required(path.Child("resource"), "")}
	}
	_, name, _ := strings.Cut(f.Resource, ".")
	huge := strings.HasPrefix(f.Resource, "limits.hugepages-") || strings.HasPrefix(f.Resource, "requests.hugepages-")
	if !huge && !sets.New(containerResources...).Has(f.Resource) {
		return field.ErrorList{field.NotSupported(path.Child("resource"), f.Resource, containerResources)}
	}
	if f.Divisor.Sign() == 0 && f.Divisor.Equal(resource.Quantity{}) {
		return nil
	}
	allowed := divisors[name]
	if allowed == nil {
		allowed = divisors[""]
	}
	if d := f.Divisor.String(); !allowed.Has(d) {
		return field.ErrorList{field.Invalid(path.Child("divisor"), d, "only divisor's values "+strings.Join(sets.List(allowed), ", ")+" are supported with the resource "+name)}
	}
	return nil
}
