// Package scheduling has the defaults and rules of groups of pods that are given nodes together: the Workload, which
// has templates of groups, and the PodGroup itself.
package scheduling

import (
	"fmt"
	"slices"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// highestUserPriority is the most that a group may have, as with pods.
const highestUserPriority = 1_000_000_000

// SetPodGroupDefaults fills in what is missing.
func SetPodGroupDefaults(o *schedulingv1beta1.PodGroup) {
	check.OrNew(&o.Spec.DisruptionMode, schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}})
}

// ValidatePodGroup holds a new group to its rules.
func ValidatePodGroup(o *schedulingv1beta1.PodGroup) field.ErrorList {
	path := field.NewPath("spec")
	errs := append(check.Meta(o, true, check.SubdomainName), policy(&o.Spec.SchedulingPolicy, path.Child("schedulingPolicy"))...)
	if r := o.Spec.WorkloadRef; r != nil {
		at := path.Child("workloadRef")
		errs = append(errs, check.ObjectName(at.Child("workloadName"), r.WorkloadName)...)
		errs = append(errs, check.Required(at.Child("templateName"), r.TemplateName)...)
		errs = append(errs, check.Label(at.Child("templateName"), r.TemplateName)...)
	}
	errs = append(errs, disabled(path, map[string]bool{
		"parentCompositePodGroupName": o.Spec.ParentCompositePodGroupName != nil, "schedulingConstraints": o.Spec.SchedulingConstraints != nil,
		"preemptionPolicy": o.Spec.PreemptionPolicy != nil,
	})...)
	return append(errs, common(o.Spec.DisruptionMode, o.Spec.PriorityClassName, o.Spec.Priority, path)...)
}

// ValidatePodGroupUpdate holds a changed group to its rules: only how many of its pods are enough may change.
func ValidatePodGroupUpdate(o, old *schedulingv1beta1.PodGroup) field.ErrorList {
	path := field.NewPath("spec")
	errs := append(check.MetaUpdate(o, old), ValidatePodGroup(o)...)
	errs = append(errs, policyUpdate(&o.Spec.SchedulingPolicy, &old.Spec.SchedulingPolicy, path.Child("schedulingPolicy"))...)
	for _, f := range []struct {
		name     string
		now, was any
	}{
		{"workloadRef", o.Spec.WorkloadRef, old.Spec.WorkloadRef},
		{"resourceClaims", o.Spec.ResourceClaims, old.Spec.ResourceClaims},
		{"disruptionMode", o.Spec.DisruptionMode, old.Spec.DisruptionMode},
		{"priorityClassName", o.Spec.PriorityClassName, old.Spec.PriorityClassName},
		{"priority", o.Spec.Priority, old.Spec.Priority},
	} {
		errs = append(errs, check.Immutable(path.Child(f.name), f.now, f.was)...)
	}
	return errs
}

// ValidateWorkload holds a new workload to its rules.
func ValidateWorkload(o *schedulingv1beta1.Workload) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.Meta(o, true, check.SubdomainName)
	if r := o.Spec.ControllerRef; r != nil {
		at := path.Child("controllerRef")
		errs = append(errs, check.Subdomain(at.Child("apiGroup"), r.APIGroup)...)
		errs = append(errs, segment(at.Child("kind"), r.Kind)...)
		errs = append(errs, segment(at.Child("name"), r.Name)...)
	}
	errs = append(errs, disabled(path, map[string]bool{"compositePodGroupTemplates": len(o.Spec.CompositePodGroupTemplates) > 0})...)
	at := path.Child("podGroupTemplates")
	switch n := len(o.Spec.PodGroupTemplates); {
	case n == 0:
		errs = append(errs, field.Invalid(path, "", "must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`"))
	case n > schedulingv1beta1.WorkloadMaxPodGroupTemplates:
		return append(errs, field.TooMany(at, n, schedulingv1beta1.WorkloadMaxPodGroupTemplates))
	}
	for i := range o.Spec.PodGroupTemplates {
		t := &o.Spec.PodGroupTemplates[i]
		errs = append(errs, template(t, at.Index(i))...)
		if slices.ContainsFunc(o.Spec.PodGroupTemplates[:i], func(b schedulingv1beta1.PodGroupTemplate) bool { return b.Name == t.Name }) {
			errs = append(errs, field.Duplicate(at.Index(i), t.Name))
		}
	}
	return errs
}

// ValidateWorkloadUpdate holds a changed workload to its rules: only how many pods are enough may change.
func ValidateWorkloadUpdate(o, old *schedulingv1beta1.Workload) field.ErrorList {
	path := field.NewPath("spec")
	errs := append(check.MetaUpdate(o, old), ValidateWorkload(o)...)
	errs = append(errs, check.Immutable(path.Child("controllerRef"), o.Spec.ControllerRef, old.Spec.ControllerRef)...)
	at := path.Child("podGroupTemplates")
	before := map[string]*schedulingv1beta1.PodGroupTemplate{}
	for i := range old.Spec.PodGroupTemplates {
		before[old.Spec.PodGroupTemplates[i].Name] = &old.Spec.PodGroupTemplates[i]
	}
	for i := range o.Spec.PodGroupTemplates {
		t := &o.Spec.PodGroupTemplates[i]
		was := before[t.Name]
		if was == nil {
			errs = append(errs, field.Forbidden(at.Index(i), "items may not be added"))
			continue
		}
		delete(before, t.Name)
		errs = append(errs, policyUpdate(&t.SchedulingPolicy, &was.SchedulingPolicy, at.Index(i).Child("schedulingPolicy"))...)
		now, then := *t, *was
		now.SchedulingPolicy, then.SchedulingPolicy = schedulingv1beta1.PodGroupSchedulingPolicy{}, schedulingv1beta1.PodGroupSchedulingPolicy{}
		errs = append(errs, check.Immutable(at.Index(i), now, then)...)
	}
	if len(before) > 0 {
		errs = append(errs, field.Forbidden(at, "items may not be removed"))
	}
	return errs
}

func template(t *schedulingv1beta1.PodGroupTemplate, path *field.Path) field.ErrorList {
	errs := check.Required(path.Child("name"), t.Name)
	errs = append(errs, check.Label(path.Child("name"), t.Name)...)
	errs = append(errs, policy(&t.SchedulingPolicy, path.Child("schedulingPolicy"))...)
	errs = append(errs, disabled(path, map[string]bool{
		"schedulingConstraints": t.SchedulingConstraints != nil, "preemptionPolicy": t.PreemptionPolicy != nil,
	})...)
	return append(errs, common(t.DisruptionMode, t.PriorityClassName, t.Priority, path)...)
}

func common(mode *schedulingv1beta1.DisruptionMode, class string, priority *int32, path *field.Path) field.ErrorList {
	errs := check.Subdomain(path.Child("priorityClassName"), class)
	if priority != nil && *priority > highestUserPriority {
		errs = append(errs, field.Invalid(path.Child("priority"), *priority, fmt.Sprintf("must be less than or equal to %d", highestUserPriority)))
	}
	if mode != nil {
		errs = append(errs, one(path.Child("disruptionMode"), "`single`, `all`", mode.Single != nil, mode.All != nil)...)
	}
	return errs
}

func policy(p *schedulingv1beta1.PodGroupSchedulingPolicy, path *field.Path) field.ErrorList {
	errs := one(path, "`basic`, `gang`", p.Basic != nil, p.Gang != nil)
	if p.Gang != nil {
		errs = append(errs, check.AtLeast(path.Child("gang", "minCount"), p.Gang.MinCount, 1)...)
	}
	return errs
}

// policyUpdate refuses another policy: pods of the group have been given nodes by the one that there was.
func policyUpdate(p, old *schedulingv1beta1.PodGroupSchedulingPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(p.Basic, old.Basic) {
		errs = append(errs, field.Invalid(path.Child("basic"), p.Basic, "field is immutable"))
	}
	switch {
	case p.Gang != nil && old.Gang == nil:
		errs = append(errs, field.Invalid(path.Child("gang"), p.Gang, "field cannot be set once created"))
	case p.Gang == nil && old.Gang != nil:
		errs = append(errs, field.Invalid(path.Child("gang"), nil, "field cannot be cleared once set"))
	}
	return errs
}

// one holds a union to one member.
func one(path *field.Path, members string, set ...bool) field.ErrorList {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	switch n {
	case 0:
		return field.ErrorList{field.Invalid(path, "", "must specify one of: "+members)}
	case 1:
		return nil
	}
	return field.ErrorList{field.Invalid(path, "", "must specify exactly one of: "+members)}
}

// disabled refuses fields of features that are alpha, or off by default: the scheduler would not do what they say.
func disabled(path *field.Path, set map[string]bool) field.ErrorList {
	var errs field.ErrorList
	for name, given := range set {
		if given {
			errs = append(errs, field.Forbidden(path.Child(name), ""))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int {
		if a.Field < b.Field {
			return -1
		}
		return 1
	})
	return errs
}

func segment(path *field.Path, name string) field.ErrorList {
	return append(check.Required(path, name), check.Invalid(path, name, content.IsPathSegmentName(name))...)
}
