package desired

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PersistentKind is a kind of PersistentVolumes that this version mounts.
type PersistentKind struct {
	Name  string // of the field in the PersistentVolume
	Block bool   // it can be a block device
}

// PersistentKinds are all of them. They are those that agent/volume makes, which its tests hold it to.
func PersistentKinds() []PersistentKind {
	return []PersistentKind{{Name: "hostPath"}, {Name: "local", Block: true}, {Name: "nfs"}, {Name: "iscsi", Block: true}, {Name: "csi", Block: true}}
}

// UnsupportedVolume names what of a PersistentVolume this version of the agent cannot mount.
func UnsupportedVolume(v *corev1.PersistentVolume) field.ErrorList {
	kinds, spec := PersistentKinds(), field.NewPath("spec")
	name := fieldSet(reflect.ValueOf(&v.Spec.PersistentVolumeSource).Elem())
	if name == "" {
		return nil
	}
	i := slices.IndexFunc(kinds, func(k PersistentKind) bool { return k.Name == name })
	if i < 0 {
		return field.ErrorList{field.Forbidden(spec, volumeYet+": must be one of "+names(kinds, ", "))}
	}
	if mode := v.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock && !kinds[i].Block {
		kinds = slices.DeleteFunc(kinds, func(k PersistentKind) bool { return !k.Block })
		return field.ErrorList{
			field.Invalid(spec.Child("volumeMode"), *mode, "only "+names(kinds, " and ")+" volumes can be block devices"),
		}
	}
	return nil
}

func names(kinds []PersistentKind, between string) string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	return strings.Join(out, between)
}

// fieldSet is the JSON name of the first field of a struct of pointers that is set, "" when none is.
func fieldSet(v reflect.Value) string {
	for f, value := range v.Fields() {
		if !value.IsZero() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// secretsOf are the Secrets that a volume's kind needs to reach what it mounts. In the API each such kind has a
// reference to one, and no kind one to anything else.
func secretsOf(v *corev1.Volume) []string {
	var out []string
	for _, source := range reflect.ValueOf(&v.VolumeSource).Elem().Fields() {
		if source.IsNil() {
			continue
		}
		for _, value := range source.Elem().Fields() {
			if ref, ok := reflect.TypeAssert[*corev1.LocalObjectReference](value); ok && ref != nil {
				out = append(out, ref.Name)
			}
		}
	}
	return out
}
