// Package policy has the rules of disruption budgets.
package policy

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// ValidateBudget holds a new budget to its rules.
func ValidateBudget(o *policyv1.PodDisruptionBudget) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), spec(o, nil)...)
}

// ValidateBudgetUpdate holds a changed budget to its rules.
func ValidateBudgetUpdate(o, old *policyv1.PodDisruptionBudget) field.ErrorList {
	errs := append(check.Meta(o, true, check.SubdomainName), check.MetaUpdate(o, old)...)
	return append(errs, spec(o, old)...)
}

func spec(o, old *policyv1.PodDisruptionBudget) field.ErrorList {
	s, path := &o.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, "", "minAvailable and maxUnavailable cannot be both set"))
	}
	if s.MinAvailable != nil {
		errs = append(errs, check.Share(path.Child("minAvailable"), *s.MinAvailable)...)
		errs = append(errs, check.AtMostAll(path.Child("minAvailable"), *s.MinAvailable)...)
	}
	if s.MaxUnavailable != nil {
		errs = append(errs, check.Share(path.Child("maxUnavailable"), *s.MaxUnavailable)...)
		errs = append(errs, check.AtMostAll(path.Child("maxUnavailable"), *s.MaxUnavailable)...)
	}
	if old != nil {
		errs = append(errs, check.SelectorAsBefore(path.Child("selector"), s.Selector, old.Spec.Selector)...)
	} else {
		errs = append(errs, check.Selector(path.Child("selector"), s.Selector)...)
	}
	return append(errs, check.SupportedIf(path.Child("unhealthyPodEvictionPolicy"), s.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget, policyv1.AlwaysAllow)...)
}
