// Package rbac has the defaults and rules of roles and their bindings.
package rbac

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// names of roles and bindings may be anything that fits in a path, as system:node does.
func names(name string, _ bool) []string { return content.IsPathSegmentName(name) }

// SetBindingDefaults fills in what a binding of either kind misses.
func SetBindingDefaults(ref *rbacv1.RoleRef, subjects []rbacv1.Subject) {
	check.Or(&ref.APIGroup, rbacv1.GroupName)
	for i := range subjects {
		if k := subjects[i].Kind; k == rbacv1.UserKind || k == rbacv1.GroupKind {
			check.Or(&subjects[i].APIGroup, rbacv1.GroupName)
		}
	}
}

// ValidateRole holds a new role to its rules.
func ValidateRole(o *rbacv1.Role) field.ErrorList {
	return append(check.Meta(o, true, names), policyRules(o.Rules, true, field.NewPath("rules"))...)
}

// ValidateRoleUpdate holds a changed role to its rules.
func ValidateRoleUpdate(o, old *rbacv1.Role) field.ErrorList {
	return append(ValidateRole(o), check.MetaUpdate(o, old)...)
}

// ValidateClusterRole holds a new role to its rules.
func ValidateClusterRole(o *rbacv1.ClusterRole) field.ErrorList { return clusterRole(o, nil) }

// ValidateClusterRoleUpdate holds a changed role to its rules.
func ValidateClusterRoleUpdate(o, old *rbacv1.ClusterRole) field.ErrorList {
	return append(clusterRole(o, old), check.MetaUpdate(o, old)...)
}

func clusterRole(o, old *rbacv1.ClusterRole) field.ErrorList {
	errs := append(check.Meta(o, false, names), policyRules(o.Rules, false, field.NewPath("rules"))...)
	if o.AggregationRule == nil {
		return errs
	}
	path := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(o.AggregationRule.ClusterRoleSelectors) == 0 {
		return append(errs, field.Required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	for i := range o.AggregationRule.ClusterRoleSelectors {
		var before *metav1.LabelSelector
		if old != nil && old.AggregationRule != nil {
			for j := range old.AggregationRule.ClusterRoleSelectors {
				if s := &old.AggregationRule.ClusterRoleSelectors[j]; before == nil || len(check.Selector(path, s)) > 0 {
					before = s
				}
			}
		}
		s := &o.AggregationRule.ClusterRoleSelectors[i]
		errs = append(errs, check.SelectorAsBefore(path.Index(i), s, before)...)
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), s, err.Error()))
		}
	}
	return errs
}

// policyRules holds each rule to naming either resources or paths; a path belongs to no namespace.
func policyRules(rules []rbacv1.PolicyRule, namespaced bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, r := range rules {
		at := path.Index(i)
		if len(r.Verbs) == 0 {
			errs = append(errs, field.Required(at.Child("verbs"), "verbs must contain at least one value"))
		}
		if len(r.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
			}
			if len(r.APIGroups)+len(r.Resources)+len(r.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(at.Child("nonResourceURLs"), r.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(r.APIGroups) == 0 {
			errs = append(errs, field.Required(at.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(r.Resources) == 0 {
			errs = append(errs, field.Required(at.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

// ValidateRoleBinding holds a new binding to its rules.
func ValidateRoleBinding(o *rbacv1.RoleBinding) field.ErrorList {
	return append(check.Meta(o, true, names), binding(o.RoleRef, o.Subjects, true)...)
}

// ValidateRoleBindingUpdate holds a changed binding to its rules.
func ValidateRoleBindingUpdate(o, old *rbacv1.RoleBinding) field.ErrorList {
	errs := append(ValidateRoleBinding(o), check.MetaUpdate(o, old)...)
	return append(errs, sameRole(o.RoleRef, old.RoleRef)...)
}

// ValidateClusterRoleBinding holds a new binding to its rules.
func ValidateClusterRoleBinding(o *rbacv1.ClusterRoleBinding) field.ErrorList {
	return append(check.Meta(o, false, names), binding(o.RoleRef, o.Subjects, false)...)
}

// ValidateClusterRoleBindingUpdate holds a changed binding to its rules.
func ValidateClusterRoleBindingUpdate(o, old *rbacv1.ClusterRoleBinding) field.ErrorList {
	errs := append(ValidateClusterRoleBinding(o), check.MetaUpdate(o, old)...)
	return append(errs, sameRole(o.RoleRef, old.RoleRef)...)
}

func sameRole(now, old rbacv1.RoleRef) field.ErrorList {
	if now == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("roleRef"), now, "cannot change roleRef")}
}

func binding(ref rbacv1.RoleRef, subjects []rbacv1.Subject, namespaced bool) field.ErrorList {
	path := field.NewPath("roleRef")
	errs := check.Supported(path.Child("apiGroup"), ref.APIGroup, rbacv1.GroupName)
	kinds := []string{"ClusterRole"}
	if namespaced {
		kinds = []string{"Role", "ClusterRole"}
	}
	errs = append(errs, check.Supported(path.Child("kind"), ref.Kind, kinds...)...)
	if ref.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else {
		errs = append(errs, check.Invalid(path.Child("name"), ref.Name, content.IsPathSegmentName(ref.Name))...)
	}
	for i := range subjects {
		errs = append(errs, subject(&subjects[i], namespaced, field.NewPath("subjects").Index(i))...)
	}
	return errs
}

func subject(s *rbacv1.Subject, namespaced bool, path *field.Path) field.ErrorList {
	errs := check.Required(path.Child("name"), s.Name)
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		if s.Name != "" {
			errs = append(errs, check.Invalid(path.Child("name"), s.Name, validation.IsDNS1123Subdomain(s.Name))...)
		}
		errs = append(errs, check.Supported(path.Child("apiGroup"), s.APIGroup, "")...)
		if !namespaced && s.Namespace == "" {
			errs = append(errs, field.Required(path.Child("namespace"), ""))
		}
	case rbacv1.UserKind, rbacv1.GroupKind:
		errs = append(errs, check.Supported(path.Child("apiGroup"), s.APIGroup, rbacv1.GroupName)...)
	default:
		errs = append(errs, field.NotSupported(path.Child("kind"), s.Kind, []string{rbacv1.ServiceAccountKind, rbacv1.UserKind, rbacv1.GroupKind}))
	}
	return errs
}
