package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// SetPodDefaults fills in what is missing.
func SetPodDefaults(o *corev1.Pod) {
	api.SetDefaults(o)
	// One address under two names.
	s := &o.Status
	switch {
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	}
}

// ValidatePod holds a new pod to its rules.
func ValidatePod(o *corev1.Pod) field.ErrorList {
	errs := api.Validate(o)
	if len(o.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "cannot be set on create"))
	}
	return errs
}

// ValidatePodUpdate holds a changed pod to its rules: little of one changes but images, deadlines and tolerations, and
// what places a pod that waits for its gates.
func ValidatePodUpdate(o, old *corev1.Pod) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, api.Validate(o)...)
	path := field.NewPath("spec")
	if n := len(o.Spec.Containers); n != len(old.Spec.Containers) {
		return append(errs, field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers"))
	}
	if n := len(o.Spec.InitContainers); n != len(old.Spec.InitContainers) {
		return append(errs, field.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers"))
	}
	errs = append(errs, deadline(o, old, path.Child("activeDeadlineSeconds"))...)
	errs = append(errs, addedTolerations(o.Spec.Tolerations, old.Spec.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, fewerGates(o.Spec.SchedulingGates, old.Spec.SchedulingGates, path.Child("schedulingGates"))...)
	now, was := o.Spec.DeepCopy(), old.Spec.DeepCopy()
	for i := range now.Containers {
		now.Containers[i].Image = was.Containers[i].Image
	}
	for i := range now.InitContainers {
		now.InitContainers[i].Image = was.InitContainers[i].Image
	}
	now.ActiveDeadlineSeconds, now.Tolerations, now.SchedulingGates = was.ActiveDeadlineSeconds, was.Tolerations, was.SchedulingGates
	if t := was.TerminationGracePeriodSeconds; t != nil && *t < 0 && now.TerminationGracePeriodSeconds != nil && *now.TerminationGracePeriodSeconds == 1 {
		now.TerminationGracePeriodSeconds = t
	}
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, placement(now, was, path)...)
	}
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(path, "pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "+
			"`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations), `spec.terminationGracePeriodSeconds` "+
			"(allow it to be set to 1 if it was previously negative)"))
	}
	return errs
}

// deadline may come and shrink.
func deadline(o, old *corev1.Pod, path *field.Path) field.ErrorList {
	now, was := o.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds
	switch {
	case now != nil && *now < 0:
		return field.ErrorList{field.Invalid(path, *now, "must be greater than or equal to 0")}
	case now != nil && was != nil && *was < *now:
		return field.ErrorList{field.Invalid(path, *now, "must be less than or equal to previous value")}
	case now == nil && was != nil:
		return field.ErrorList{field.Invalid(path, now, "must not update from a positive integer to nil value")}
	}
	return nil
}

// addedTolerations lets tolerations be added, and those of a limited time last longer or shorter.
func addedTolerations(now, old []corev1.Toleration, path *field.Path) field.ErrorList {
	for _, was := range old {
		ok := slices.ContainsFunc(now, func(t corev1.Toleration) bool {
			t.TolerationSeconds, was.TolerationSeconds = nil, nil
			return equality.Semantic.DeepEqual(t, was)
		})
		if !ok {
			return field.ErrorList{field.Forbidden(path, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

func fewerGates(now, old []corev1.PodSchedulingGate, path *field.Path) field.ErrorList {
	had := sets.New(old...)
	var errs field.ErrorList
	for i, g := range now {
		if !had.Has(g) {
			errs = append(errs, field.Forbidden(path.Index(i).Child("name"), fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// placement lets a pod that waits for its gates become pickier about nodes. What it lets pass it makes equal.
func placement(now, was *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for k, v := range was.NodeSelector {
		if now.NodeSelector[k] != v {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), now.NodeSelector, "only additions are allowed (no mutations or deletions)"))
			break
		}
	}
	now.NodeSelector = was.NodeSelector
	var before, after *corev1.NodeAffinity
	if was.Affinity != nil {
		before = was.Affinity.NodeAffinity
	}
	if now.Affinity != nil {
		after = now.Affinity.NodeAffinity
	}
	errs = append(errs, pickier(after, before, path.Child("affinity", "nodeAffinity"))...)
	switch {
	case now.Affinity == nil && was.Affinity != nil:
		if rest := *was.Affinity; rest.PodAffinity == nil && rest.PodAntiAffinity == nil {
			now.Affinity = was.Affinity
		}
	case now.Affinity != nil && was.Affinity == nil:
		if rest := *now.Affinity; rest.PodAffinity == nil && rest.PodAntiAffinity == nil {
			now.Affinity = nil
		}
	case now.Affinity != nil:
		now.Affinity.NodeAffinity = before
	}
	return errs
}

func pickier(now, old *corev1.NodeAffinity, path *field.Path) field.ErrorList {
	if old == nil || old.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	path = path.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	was := old.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var terms []corev1.NodeSelectorTerm
	if now != nil && now.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = now.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(was) > 0 && len(terms) != len(was) {
		return field.ErrorList{field.Invalid(path, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range was {
		more := len(terms[i].MatchExpressions) >= len(was[i].MatchExpressions) && len(terms[i].MatchFields) >= len(was[i].MatchFields)
		if !more || len(was[i].MatchExpressions)+len(was[i].MatchFields) == 0 && !equality.Semantic.DeepEqual(terms[i], was[i]) ||
			!equality.Semantic.DeepEqual(terms[i].MatchExpressions[:len(was[i].MatchExpressions)], was[i].MatchExpressions) ||
			!equality.Semantic.DeepEqual(terms[i].MatchFields[:len(was[i].MatchFields)], was[i].MatchFields) {
			errs = append(errs, field.Invalid(path.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}
