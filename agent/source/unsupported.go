package source

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// entry says of a field why it is not acted upon. In a path, [*] stands for every element, containers for init containers too,
// and a final =value for that value only; otherwise any value but the empty one counts.
type entry struct{ path, reason string }

const (
	objects   = "a static pod cannot refer to objects of an API server, and manifests of them are not read yet"
	volumeYet = "this kind of volume is not there yet: use emptyDir or hostPath"
)

// unsupported lists what this version does not do yet. Such a pod is refused, because a field that is silently ignored
// is found out in production. Each line goes when its feature comes.
var unsupported = []entry{
	{"spec.containers[*].livenessProbe", "probes are not there yet"},
	{"spec.containers[*].readinessProbe", "probes are not there yet"},
	{"spec.containers[*].startupProbe", "probes are not there yet"},

	{"spec.containers[*].envFrom", objects},
	{"spec.containers[*].env[*].valueFrom.configMapKeyRef", objects},
	{"spec.containers[*].env[*].valueFrom.secretKeyRef", objects},
	{"spec.containers[*].env[*].valueFrom.fileKeyRef", "environment from files is not there yet"},
	{"spec.imagePullSecrets", objects},
	{"spec.serviceAccountName", objects},
	{"spec.automountServiceAccountToken=true", objects},
	{"spec.resourceClaims", "devices by resource claim are not there yet"},
	{"spec.containers[*].resources.claims", "devices by resource claim are not there yet"},

	{"spec.volumes[*].awsElasticBlockStore", volumeYet},
	{"spec.volumes[*].azureDisk", volumeYet},
	{"spec.volumes[*].azureFile", volumeYet},
	{"spec.volumes[*].cephfs", volumeYet},
	{"spec.volumes[*].cinder", volumeYet},
	{"spec.volumes[*].configMap", volumeYet},
	{"spec.volumes[*].csi", volumeYet},
	{"spec.volumes[*].downwardAPI", volumeYet},
	{"spec.volumes[*].ephemeral", volumeYet},
	{"spec.volumes[*].fc", volumeYet},
	{"spec.volumes[*].flexVolume", volumeYet},
	{"spec.volumes[*].flocker", volumeYet},
	{"spec.volumes[*].gcePersistentDisk", volumeYet},
	{"spec.volumes[*].gitRepo", volumeYet},
	{"spec.volumes[*].glusterfs", volumeYet},
	{"spec.volumes[*].image", volumeYet},
	{"spec.volumes[*].iscsi", volumeYet},
	{"spec.volumes[*].nfs", volumeYet},
	{"spec.volumes[*].persistentVolumeClaim", volumeYet},
	{"spec.volumes[*].photonPersistentDisk", volumeYet},
	{"spec.volumes[*].portworxVolume", volumeYet},
	{"spec.volumes[*].projected", volumeYet},
	{"spec.volumes[*].quobyte", volumeYet},
	{"spec.volumes[*].rbd", volumeYet},
	{"spec.volumes[*].scaleIO", volumeYet},
	{"spec.volumes[*].secret", volumeYet},
	{"spec.volumes[*].storageos", volumeYet},
	{"spec.volumes[*].vsphereVolume", volumeYet},
	{"spec.containers[*].volumeDevices", "block volumes are not there yet"},
	{"spec.containers[*].volumeMounts[*].bindMountOptions", "mount options of a container are not there yet"},

	{"spec.ephemeralContainers", "ephemeral containers are not there yet, and none can be part of a manifest"},
	{"spec.containers[*].restartPolicy=Never", "restart policies of single containers are not there yet, but for Always of an init container"},
	{"spec.containers[*].restartPolicy=OnFailure", "restart policies of single containers are not there yet, but for Always of an init container"},
	{"spec.containers[*].restartPolicyRules", "restart rules by exit code are not there yet"},
	{"spec.containers[*].lifecycle.stopSignal", "a stop signal other than the image's is not there yet"},
	{"spec.containers[*].lifecycle.postStart.tcpSocket", "a tcpSocket is no handler of a lifecycle event"},
	{"spec.containers[*].lifecycle.preStop.tcpSocket", "a tcpSocket is no handler of a lifecycle event"},
	{"spec.containers[*].securityContext.seLinuxOptions", "SELinux is not there yet"},
	{"spec.containers[*].securityContext.appArmorProfile.type=RuntimeDefault", "AppArmor is not there yet"},
	{"spec.containers[*].securityContext.appArmorProfile.type=Localhost", "AppArmor is not there yet"},
	{"spec.containers[*].securityContext.windowsOptions", "this is a Linux node"},
	{"spec.securityContext.seLinuxOptions", "SELinux is not there yet"},
	{"spec.securityContext.appArmorProfile.type=RuntimeDefault", "AppArmor is not there yet"},
	{"spec.securityContext.appArmorProfile.type=Localhost", "AppArmor is not there yet"},
	{"spec.securityContext.windowsOptions", "this is a Linux node"},
	{"spec.securityContext.supplementalGroupsPolicy=Strict", "groups of the image's user cannot be left out yet"},

	{"spec.activeDeadlineSeconds", "deadlines are not there yet"},
	{"spec.affinity.nodeAffinity", "nodes have no labels yet to be chosen by"},
	{"spec.nodeSelector", "nodes have no labels yet to be chosen by"},
	{"spec.evictionResponders", "evictions by an API server are not there yet"},
	{"spec.hostUsers=false", "user namespaces are not there yet"},
	{"spec.hostnameOverride", "the host name is set by hostname and subdomain only yet"},
	{"spec.os.name=windows", "this is a Linux node"},
	{"spec.overhead", "runtime classes are not there yet"},
	{"spec.readinessGates", "conditions of others are not there yet, so the pod would never be ready"},
	{"spec.resources", "resources of the whole pod are not there yet: set those of its containers"},
	{"spec.runtimeClassName", "runtime classes are not there yet"},
	{"spec.schedulingGates", "a static pod is not scheduled, so nothing would ever open the gate"},
	{"spec.schedulingGroup", "a static pod is not scheduled"},
}

// ignoredFields lists what has no meaning for a pod that is bound to its node: the pod runs, with a warning.
var ignoredFields = []entry{
	{"spec.affinity.podAffinity", "a static pod is not scheduled"},
	{"spec.affinity.podAntiAffinity", "a static pod is not scheduled"},
	{"spec.topologySpreadConstraints", "a static pod is not scheduled"},
	{"spec.schedulerName", "a static pod is not scheduled"},
	{"spec.preemptionPolicy", "a static pod is not scheduled"},
	{"spec.containers[*].resizePolicy", "the resources of a static pod change by replacing it"},
}

// systemPriorities are the two priority classes that exist without an API server.
var systemPriorities = map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}

// Unsupported names every field of a pod that this version of the agent does not act upon.
func Unsupported(pod *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	for _, e := range unsupported {
		for _, path := range find(pod, e.path) {
			errs = append(errs, field.Forbidden(at(path), e.reason))
		}
	}
	if c := pod.Spec.PriorityClassName; c != "" && systemPriorities[c] == 0 {
		errs = append(errs, field.NotSupported(at("spec.priorityClassName"), c, slices.Sorted(maps.Keys(systemPriorities))))
	}
	return errs
}

// at makes a path of its text, which field.NewPath keeps as it is.
func at(path string) *field.Path { return field.NewPath(path) }

// checkUID refuses a UID that cannot be part of a path and the name of a cgroup, as it is about to be.
func checkUID(pod *corev1.Pod) field.ErrorList {
	uid := string(pod.UID)
	ok := len(uid) <= 64 && !strings.HasPrefix(uid, "-")
	for _, c := range uid {
		ok = ok && (c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if ok {
		return nil
	}
	return field.ErrorList{field.Invalid(at("metadata.uid"), types.UID(uid), "must be at most 64 letters, digits and dashes")}
}

// find returns the paths in pod that pattern fits and that are set.
func find(pod *corev1.Pod, pattern string) []string {
	rest, ok := strings.CutPrefix(pattern, "spec.")
	if !ok {
		return nil
	}
	spec := reflect.ValueOf(&pod.Spec).Elem()
	out := match(spec, "spec", rest)
	if after, ok := strings.CutPrefix(rest, "containers[*]"); ok {
		out = append(match(spec, "spec", "initContainers[*]"+after), out...)
	}
	return out
}

func match(v reflect.Value, path, pattern string) []string {
	step, rest, _ := strings.Cut(pattern, ".")
	step, want, hasWant := strings.Cut(step, "=")
	name, each := strings.CutSuffix(step, "[*]")
	v = fieldOf(v, name)
	if !v.IsValid() || v.IsZero() {
		return nil
	}
	path += "." + name
	if each {
		var out []string
		for i := range v.Len() {
			out = append(out, match(v.Index(i), fmt.Sprintf("%s[%d]", path, i), rest)...)
		}
		return out
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch {
	case rest != "":
		return match(v, path, rest)
	case hasWant && fmt.Sprint(v.Interface()) != want:
		return nil
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0:
		return nil
	}
	return []string{path}
}

// fieldOf returns the field of a struct by its JSON name, through inlined structs.
func fieldOf(v reflect.Value, name string) reflect.Value {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name {
			return v.Field(i)
		}
		if tag == "" && f.Anonymous {
			if in := fieldOf(v.Field(i), name); in.IsValid() {
				return in
			}
		}
	}
	return reflect.Value{}
}
