package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/probes"
)

// systemPriorities are the two priority classes that exist without an API server.
var systemPriorities = map[string]int32{"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}

// static turns the pod of a manifest into a static pod of this node: identity, defaults, validation. The pod of d
// becomes part of the item.
func static(d *decoded, node string, origin desired.Origin, seen time.Time) (Item, bool) {
	pod := d.pod
	if pod.Name == "" {
		d.errors = append(d.errors, d.at.say("metadata.name", "metadata.name: Required value: a static pod needs a name"))
		return Item{}, false
	}
	d.warnings = append(d.warnings, ignored(d, node)...)
	pod.Status = corev1.PodStatus{}
	pod.GenerateName = ""
	pod.TypeMeta.APIVersion, pod.TypeMeta.Kind = "v1", "Pod"
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	pod.Spec.NodeName = node
	raw, err := json.Marshal(pod)
	if err != nil {
		d.errors = append(d.errors, d.at.say("", err.Error()))
		return Item{}, false
	}
	hash := contentHash(raw, node)
	pod.Name += "-" + node
	if pod.UID == "" {
		pod.UID = types.UID(hash)
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[desired.AnnotationSource] = string(origin)
	pod.Annotations[desired.AnnotationHash] = hash
	pod.Annotations[desired.AnnotationSeen] = seen.Format(time.RFC3339Nano)
	// No taint of the node ends a static pod: it is here because a file is.
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
		Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
	})
	if p, ok := systemPriorities[pod.Spec.PriorityClassName]; ok && pod.Spec.Priority == nil {
		pod.Spec.Priority = &p
	}
	api.SetDefaults(pod)
	errs := api.Validate(pod)
	errs = append(errs, checkUID(pod.UID)...)
	errs = append(errs, checkMirror(pod)...)
	errs = append(errs, desired.Unsupported(pod)...)
	if _, err := probes.Period(pod, &corev1.Probe{}); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(probes.PeriodAnnotation),
			pod.Annotations[probes.PeriodAnnotation], err.Error()))
	}
	if _, err := desired.After(pod); err != nil {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(desired.AnnotationAfter),
			pod.Annotations[desired.AnnotationAfter], err.Error()))
	}
	if len(errs) > 0 {
		d.errors = append(d.errors, d.at.sayAll(errs)...)
		return Item{}, false
	}
	pod.Status.Phase = corev1.PodPending
	return Item{Ref: object.RefTo(object.Pod, pod.Namespace, pod.Name), Pod: pod, Hash: hash, Raw: raw, Since: seen}, true
}

// checkUID refuses a UID that cannot be part of a path and the name of a cgroup, as a pod's is about to be.
func checkUID(given types.UID) field.ErrorList {
	uid := string(given)
	ok := len(uid) <= 64 && !strings.HasPrefix(uid, "-")
	for _, c := range uid {
		ok = ok && (c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if ok {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), types.UID(uid),
		"must be at most 64 letters, digits and dashes")}
}

// checkMirror refuses what says of itself that it is only the copy of a static pod: a kubelet runs none, and says
// nothing.
func checkMirror(pod *corev1.Pod) field.ErrorList {
	if !desired.IsMirror(pod) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", "annotations").Key(desired.AnnotationMirror),
		"it marks the copy of a static pod that an API server has, which is not run; take it out of a manifest that was "+
			"made of such a copy")}
}

// key is what the pod of d will be called, as far as its manifest tells.
func (d *decoded) key(node string) string {
	if d.name == "" {
		return ""
	}
	if d.object != nil || d.kind != object.Pod {
		return Shorten(d.ref().String())
	}
	ns := "default"
	if d.pod != nil && d.pod.Namespace != "" {
		ns = d.pod.Namespace
	}
	name := strings.TrimSuffix(d.name, "-"+node)
	return Shorten(ns + "/" + name + "-" + node)
}

// contentHash is the identity of a static pod: the same as long as node and manifest say the same, in whatever layout.
// It is taken before defaults, and without nulls, so that an agent that knows more fields than the last one comes to
// the same result. The name of the file is no part of it: a manifest that is renamed goes on running.
func contentHash(raw []byte, node string) string {
	var generic any
	if json.Unmarshal(raw, &generic) == nil {
		if clean, err := json.Marshal(dropNulls(generic)); err == nil {
			raw = clean
		}
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s", node, raw)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func dropNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e == nil {
				delete(v, k)
			} else {
				v[k] = dropNulls(e)
			}
		}
	case []any:
		for i, e := range v {
			v[i] = dropNulls(e)
		}
	}
	return v
}

// ignored names what a manifest says and a static pod cannot have.
func ignored(d *decoded, node string) []string {
	pod, at := d.pod, d.at
	var out []string
	warn := func(set bool, path, why string) {
		if set {
			out = append(out, at.say(path, fmt.Sprintf("%s is ignored: %s", path, why)))
		}
	}
	const none = "a static pod is not stored by an API server"
	warn(pod.Spec.NodeName != "" && pod.Spec.NodeName != node, "spec.nodeName",
		fmt.Sprintf("the manifest is on node %q", node))
	warn(pod.GenerateName != "", "metadata.generateName", "the pod has a name")
	warn(len(pod.OwnerReferences) > 0, "metadata.ownerReferences", none)
	warn(len(pod.Finalizers) > 0, "metadata.finalizers", none)
	warn(pod.DeletionTimestamp != nil, "metadata.deletionTimestamp", "a static pod ends when its manifest goes")
	warn(pod.Status.Phase != "" || len(pod.Status.Conditions) > 0 || len(pod.Status.ContainerStatuses) > 0, "status",
		"it is observed, not wished for")
	pod.OwnerReferences, pod.Finalizers, pod.ManagedFields = nil, nil, nil
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = nil, nil
	pod.ResourceVersion, pod.Generation = "", 0
	pod.SelfLink = "" //nolint:staticcheck // deprecated, and part of what a manifest may hold all the same
	pod.CreationTimestamp = metav1.Time{}
	for _, i := range desired.IgnoredIn(pod) {
		warn(true, i.Path, i.Reason)
	}
	return out
}
