package desired

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// entry says of a field why it is not acted upon. In a path, [*] stands for every element, containers for init
// containers too, and a final =value for that value only; otherwise any value but the empty one counts.
type entry struct{ path, reason string }

const (
	objects    = "only an API server has service accounts, and there is none"
	volumeYet  = "this kind of volume is not there yet"
	volumeGone = "Kubernetes has given this kind of volume up"
)

// volumeOf says whose volumes of a kind are now that Kubernetes makes none itself any more.
func volumeOf(driver string) string {
	return "the CSI driver " + driver + " has these volumes: claim one that names it (spec.csi.driver)"
}

// unsupported lists what this version does not do yet, wherever the pod is from. Such a pod is refused, because a field
// that is silently ignored is found out in production. Each line goes when its feature comes.
var unsupported = []entry{
	{"spec.resources.claims", "the API has no claims of the pod as a whole: containers name them"},
	{"spec.volumes[*].awsElasticBlockStore", volumeOf("ebs.csi.aws.com")},
	{"spec.volumes[*].azureDisk", volumeOf("disk.csi.azure.com")},
	{"spec.volumes[*].azureFile", volumeOf("file.csi.azure.com")},
	{"spec.volumes[*].cephfs", volumeOf("cephfs.csi.ceph.com")},
	{"spec.volumes[*].cinder", volumeOf("cinder.csi.openstack.org")},
	{"spec.volumes[*].fc", volumeYet},
	{"spec.volumes[*].flexVolume", volumeYet},
	{"spec.volumes[*].flocker", volumeGone},
	{"spec.volumes[*].gcePersistentDisk", volumeOf("pd.csi.storage.gke.io")},
	{"spec.volumes[*].gitRepo", volumeGone},
	{"spec.volumes[*].glusterfs", volumeGone},
	{"spec.volumes[*].photonPersistentDisk", volumeGone},
	{"spec.volumes[*].portworxVolume", volumeOf("pxd.portworx.com")},
	{"spec.volumes[*].quobyte", volumeGone},
	{"spec.volumes[*].rbd", volumeOf("rbd.csi.ceph.com")},
	{"spec.volumes[*].scaleIO", volumeGone},
	{"spec.volumes[*].storageos", volumeGone},
	{"spec.volumes[*].vsphereVolume", volumeOf("csi.vsphere.vmware.com")},
	{"spec.containers[*].lifecycle.postStart.tcpSocket", "a tcpSocket is no handler of a lifecycle event"},
	{"spec.containers[*].lifecycle.preStop.tcpSocket", "a tcpSocket is no handler of a lifecycle event"},
	{"spec.containers[*].securityContext.windowsOptions", "this is a Linux node"},
	{"spec.securityContext.windowsOptions", "this is a Linux node"},
	{"spec.os.name=windows", "this is a Linux node"},
}

// unsupportedStatic lists what a pod cannot have that no API server knows: there is nobody who would make tokens for
// it, bind it, or fill its volumes.
var unsupportedStatic = []entry{
	{"spec.serviceAccountName", objects},
	{"spec.automountServiceAccountToken=true", objects},
	{"spec.volumes[*].projected.sources[*].serviceAccountToken", "only an API server makes tokens, and there is none"},
	{"spec.volumes[*].projected.sources[*].clusterTrustBundle", "only an API server has trust bundles, and there is none"},
	{"spec.volumes[*].projected.sources[*].podCertificate", "only an API server signs certificates, and there is none"},
	{"spec.ephemeralContainers", "they are added to a pod that runs: berth debug"},
	{"spec.evictionResponders", "evictions by an API server are not there yet"},
	{"spec.schedulingGates", "a static pod is not scheduled, so nothing would ever open the gate"},
	{"spec.schedulingGroup", "a static pod is not scheduled"},
}

// ignoredFields lists what has no meaning for a static pod: the pod runs, with a warning. Of a pod of an API server the
// server and its scheduler have acted upon them.
var ignoredFields = []entry{
	{"spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", "a static pod is not scheduled"},
	{"spec.affinity.podAffinity", "a static pod is not scheduled"},
	{"spec.affinity.podAntiAffinity", "a static pod is not scheduled"},
	{"spec.topologySpreadConstraints", "a static pod is not scheduled"},
	{"spec.schedulerName", "a static pod is not scheduled"},
}

var (
	unsupportedRules = sync.OnceValue(func() []rule { return rules(unsupported) })
	staticRules      = sync.OnceValue(func() []rule { return rules(unsupportedStatic) })
	ignoredRules     = sync.OnceValue(func() []rule { return rules(ignoredFields) })
)

// Unsupported names every field of a pod that this version of the agent does not act upon. What only an API server and
// those who watch it act upon counts for pods of manifests alone.
func Unsupported(pod *corev1.Pod) field.ErrorList {
	held := unsupportedRules()
	if OriginOf(pod).Rules().Manifest {
		held = slices.Concat(held, staticRules())
	}
	var errs field.ErrorList
	for _, r := range held {
		for _, path := range r.find(pod) {
			errs = append(errs, field.Forbidden(field.NewPath(path), r.reason))
		}
	}
	if OriginOf(pod).Rules().Manifest {
		errs = append(errs, unsupportedTemplates(pod)...)
	}
	return errs
}

// Ignored is a field that a pod sets and that means nothing here, and why.
type Ignored struct{ Path, Reason string }

// IgnoredIn lists the fields of a static pod that mean nothing for it.
func IgnoredIn(pod *corev1.Pod) []Ignored {
	if !OriginOf(pod).Rules().Manifest {
		return nil
	}
	var out []Ignored
	for _, r := range ignoredRules() {
		for _, path := range r.find(pod) {
			out = append(out, Ignored{path, r.reason})
		}
	}
	return out
}

// Field says what becomes of a pod that sets a field: it is refused, or it runs with a warning that the field means
// nothing here.
type Field struct {
	Path    string // [*] stands for every element, containers for init containers too
	Value   string // "" = any value
	Reason  string
	Refused bool
}

// Fields lists the fields of the Pod API that pods of manifests cannot use. Every other one is acted upon.
func Fields() []Field {
	var out []Field
	for i, table := range [][]entry{slices.Concat(unsupported, unsupportedStatic), ignoredFields} {
		for _, e := range table {
			path, value, _ := strings.Cut(e.path, "=")
			out = append(out, Field{Path: path, Value: value, Reason: e.reason, Refused: i == 0})
		}
	}
	return out
}

// rule is an entry whose path is resolved to fields of the types, once, since every manifest is held to all of them.
type rule struct {
	steps  []member
	want   string // "" = any value but the empty one
	reason string
}

// member is one name of a path.
type member struct {
	name  string
	index []int
	each  bool // every element of the list
}

// rules resolves a table. A path that names no field is a mistake in the table, which a test finds.
func rules(table []entry) []rule {
	var out []rule
	for _, e := range table {
		path, want, _ := strings.Cut(e.path, "=")
		rest := strings.TrimPrefix(path, "spec.")
		if after, ok := strings.CutPrefix(rest, "containers[*]"); ok {
			for _, more := range []string{"initContainers[*]", "ephemeralContainers[*]"} {
				if steps, ok := resolve(more + after); ok {
					out = append(out, rule{steps, want, e.reason})
				}
			}
		}
		if steps, ok := resolve(rest); ok {
			out = append(out, rule{steps, want, e.reason})
		}
	}
	return out
}

func resolve(path string) ([]member, bool) {
	t := reflect.TypeFor[corev1.PodSpec]()
	var out []member
	for part := range strings.SplitSeq(path, ".") {
		name, each := strings.CutSuffix(part, "[*]")
		if t.Kind() != reflect.Struct {
			return nil, false
		}
		f, ok := fieldNamed(t, name)
		if !ok {
			return nil, false
		}
		out = append(out, member{name, f.Index, each})
		t = f.Type
		for t.Kind() == reflect.Pointer || each && t.Kind() == reflect.Slice {
			t = t.Elem()
		}
	}
	return out, true
}

// fieldNamed finds the field of a struct by its JSON name, also in inlined structs.
func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// find returns the paths in pod that the rule fits and that are set.
func (r *rule) find(pod *corev1.Pod) []string {
	return r.match(reflect.ValueOf(&pod.Spec).Elem(), "spec", r.steps)
}

func (r *rule) match(v reflect.Value, path string, steps []member) []string {
	s := &steps[0]
	v = v.FieldByIndex(s.index)
	if v.IsZero() {
		return nil
	}
	if s.each {
		var out []string
		for i := range v.Len() {
			out = append(out, r.match(v.Index(i), fmt.Sprintf("%s.%s[%d]", path, s.name, i), steps[1:])...)
		}
		return out
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case len(steps) > 1:
		return r.match(v, path+"."+s.name, steps[1:])
	case r.want != "" && fmt.Sprint(v.Interface()) != r.want:
		return nil
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0:
		return nil
	}
	return []string{path + "." + s.name}
}
