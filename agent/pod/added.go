package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/record"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/control/api"
)

// added is what was added to a pod while it was here, and what no manifest says: an API server would have it in the
// pod. It is kept in the pod's directory and goes with it, so that a manifest that asks for another pod begins without.
type added struct {
	EphemeralContainers []corev1.EphemeralContainer `json:"ephemeralContainers,omitempty"`
	Conditions          []corev1.PodCondition       `json:"conditions,omitempty"` // of others than the agent
}

func addedFile(rootDir string, uid types.UID) string {
	return filepath.Join(rootDir, "pods", string(uid), "added.json")
}

func readAdded(rootDir string, uid types.UID) *added {
	a := &added{}
	if !record.Read(addedFile(rootDir, uid), a) {
		return &added{}
	}
	return a
}

func (a *added) empty() bool { return len(a.EphemeralContainers) == 0 && len(a.Conditions) == 0 }

// addTo gives a pod the containers that were added to it.
func (a *added) addTo(pod *corev1.Pod) *corev1.Pod {
	// None is ever changed or taken away; those of a pod of an API server are in the pod.
	if pod == nil || len(pod.Spec.EphemeralContainers) >= len(a.EphemeralContainers) {
		return pod
	}
	out := *pod
	out.Spec.EphemeralContainers = a.EphemeralContainers
	return &out
}

var podKind = schema.GroupKind{Kind: "Pod"}

var podResource = schema.GroupResource{Resource: "pods"}

// AddEphemeral adds containers to a pod that runs, as the subresource ephemeralcontainers of an API server does: those
// that are there may be named again, unchanged. It returns the pod that has them; they are started from then on. Its
// errors are those of an API server (k8s.io/apimachinery/pkg/api/errors).
func (m *Manager) AddEphemeral(uid types.UID, list []corev1.EphemeralContainer) (*corev1.Pod, error) {
	return m.node.add(uid, func(pod *corev1.Pod, a *added) error {
		path := field.NewPath("spec", "ephemeralContainers")
		pod.Spec.EphemeralContainers = list
		api.SetDefaults(pod)
		list = pod.Spec.EphemeralContainers
		pod.Spec.EphemeralContainers = slices.Clone(a.EphemeralContainers)
		var errs field.ErrorList
		for i := range list {
			same := func(e corev1.EphemeralContainer) bool { return e.Name == list[i].Name }
			at := slices.IndexFunc(a.EphemeralContainers, same)
			switch {
			case at < 0:
				pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, list[i])
			case !equality.Semantic.DeepEqual(&list[i], &a.EphemeralContainers[at]):
				errs = append(errs, field.Forbidden(path.Index(at), fmt.Sprintf(
					"%q is there already, and existing ephemeral containers may not be changed", list[i].Name)))
			}
		}
		errs = append(errs, api.Validate(pod)...)
		for _, e := range desired.Unsupported(pod) {
			if e.Field != path.String() { // in a manifest they are refused as a whole
				errs = append(errs, e)
			}
		}
		if len(errs) > 0 {
			return apierrors.NewInvalid(podKind, pod.Name, errs)
		}
		a.EphemeralContainers = pod.Spec.EphemeralContainers
		return nil
	})
}

// SetConditions sets conditions of a pod's status, and takes those of the types away that are named to be removed. That
// is how readiness gates are opened. It returns the pod with them. Its errors are as those of [Manager.AddEphemeral].
func (m *Manager) SetConditions(
	uid types.UID, set []corev1.PodCondition, remove []corev1.PodConditionType,
) (*corev1.Pod, error) {
	return m.node.add(uid, func(pod *corev1.Pod, a *added) error {
		if errs := checkConditions(set, remove); len(errs) > 0 {
			return apierrors.NewInvalid(podKind, pod.Name, errs)
		}
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		a.Conditions = slices.Clone(a.Conditions)
		for _, c := range set {
			at := slices.IndexFunc(a.Conditions, func(had corev1.PodCondition) bool { return had.Type == c.Type })
			if at < 0 {
				a.Conditions = append(a.Conditions, corev1.PodCondition{Type: c.Type})
				at = len(a.Conditions) - 1
			}
			had := &a.Conditions[at]
			switch {
			case !c.LastTransitionTime.IsZero():
			case had.Status == c.Status:
				c.LastTransitionTime = had.LastTransitionTime
			default:
				c.LastTransitionTime = now
			}
			*had = c
		}
		gone := func(c corev1.PodCondition) bool { return slices.Contains(remove, c.Type) }
		a.Conditions = slices.DeleteFunc(a.Conditions, gone)
		for _, c := range a.Conditions {
			at := slices.IndexFunc(pod.Status.Conditions, func(had corev1.PodCondition) bool { return had.Type == c.Type })
			if at < 0 {
				pod.Status.Conditions = append(pod.Status.Conditions, c)
				continue
			}
			pod.Status.Conditions[at] = c
		}
		pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, gone)
		return nil
	})
}

func checkConditions(set []corev1.PodCondition, remove []corev1.PodConditionType) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "conditions")
	check := func(at *field.Path, t corev1.PodConditionType) {
		for _, bad := range content.IsLabelKey(string(t)) {
			errs = append(errs, field.Invalid(at.Child("type"), t, bad))
		}
		if slices.Contains(status.Own(), t) {
			errs = append(errs, field.Forbidden(at.Child("type"), fmt.Sprintf("%q is the agent's own to set", t)))
		}
	}
	for i, c := range set {
		at := path.Index(i)
		check(at, c.Type)
		switch c.Status {
		case corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown:
		default:
			errs = append(errs,
				field.NotSupported(at.Child("status"), c.Status, []corev1.ConditionStatus{
					corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown,
				}))
		}
	}
	for _, t := range remove {
		check(path, t)
	}
	return errs
}

// add changes what was added to a pod. The record comes before the worker hears of it, and before the caller does: what
// was promised is there after a crash.
func (n *node) add(uid types.UID, change func(*corev1.Pod, *added) error) (*corev1.Pod, error) {
	one, ok := n.registry.get(uid)
	if !ok {
		return nil, apierrors.NewConflict(podResource, string(uid),
			errors.New("the pod is not on the node: nothing of it was started yet, or nothing is left"))
	}
	n.adding.Lock()
	defer n.adding.Unlock()
	shown, ok := n.status.Get(types.NamespacedName{Namespace: one.share.Pod.Namespace, Name: one.share.Pod.Name})
	name := one.share.Pod.Name
	switch {
	case !ok || shown.UID != uid:
		return nil, apierrors.NewConflict(podResource, name, errors.New("the pod is not ready to be changed, try again"))
	case !desired.RulesOf(shown).Manifest:
		return nil, apierrors.NewForbidden(podResource, name,
			errors.New("the pod is an API server's: ask that one (kubectl debug, kubectl patch --subresource=status)"))
	case shown.DeletionTimestamp != nil:
		return nil, apierrors.NewConflict(podResource, name, errors.New("the pod is being removed"))
	case over(shown):
		return nil, apierrors.NewConflict(podResource, name, fmt.Errorf("the pod has ended: it is %s", shown.Status.Phase))
	}
	pod := shown.DeepCopy()
	a := readAdded(n.cfg.RootDir, uid)
	if err := change(pod, a); err != nil {
		return nil, err
	}
	err := record.Write(addedFile(n.cfg.RootDir, uid), a)
	if errors.Is(err, os.ErrNotExist) {
		return nil, apierrors.NewConflict(podResource, name, errors.New("the pod has not begun to start, try again"))
	}
	if err != nil {
		return nil, fmt.Errorf("record what is added to a pod: %w", err)
	}
	one.mail.putAdded(a)
	return pod, nil
}
