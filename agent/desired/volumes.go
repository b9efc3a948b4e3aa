package desired

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/agent/object"
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

// UnsupportedSource names what no volume of a claim in a manifest is filled with: the drivers make volumes of snapshots
// and of other claims.
func UnsupportedSource(spec *corev1.PersistentVolumeClaimSpec, namespace string, at *field.Path) field.ErrorList {
	path := at.Child("dataSource")
	if s := spec.DataSourceRef; spec.DataSource == nil && s != nil {
		path = at.Child("dataSourceRef")
		if s.Namespace != nil && *s.Namespace != "" && *s.Namespace != namespace {
			return field.ErrorList{field.Forbidden(path.Child("namespace"), "only what is in the claim's own namespace can fill a volume here")}
		}
	}
	kind, group, _ := object.DataSource(spec)
	switch {
	case kind == "", kind == object.PersistentVolumeClaim && group == "", kind == object.VolumeSnapshot && group == object.SnapshotGroup:
		return nil
	}
	return field.ErrorList{field.Forbidden(path, "only a PersistentVolumeClaim or a VolumeSnapshot of "+object.SnapshotGroup+" can fill a volume here")}
}

// unsupportedTemplates is that of the claims of a pod's own.
func unsupportedTemplates(pod *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].Ephemeral; e != nil && e.VolumeClaimTemplate != nil {
			at := field.NewPath("spec", "volumes").Index(i).Child("ephemeral", "volumeClaimTemplate", "spec")
			errs = append(errs, UnsupportedSource(&e.VolumeClaimTemplate.Spec, pod.Namespace, at)...)
		}
	}
	return errs
}
