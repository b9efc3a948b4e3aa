package admissionregistration

import (
	"strings"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

func selector(s *metav1.LabelSelector, labels bool, path *field.Path) field.ErrorList {
	return metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: !labels}, path)
}

func validateRule(r *v1.RuleWithOperations, _ bool, path *field.Path) field.ErrorList {
	errs := alone(r.Operations, v1.OperationAll, path.Child("operations"))
	for i, o := range r.Operations {
		errs = append(errs, check.Supported(path.Child("operations").Index(i), o, v1.OperationAll, v1.Create, v1.Update, v1.Delete, v1.Connect)...)
	}
	errs = append(errs, alone(r.APIGroups, "*", path.Child("apiGroups"))...)
	errs = append(errs, alone(r.APIVersions, "*", path.Child("apiVersions"))...)
	for i, v := range r.APIVersions {
		errs = append(errs, check.Required(path.Child("apiVersions").Index(i), v)...)
	}
	errs = append(errs, validateResources(r.Resources, path.Child("resources"))...)
	return append(errs, check.SupportedIf(path.Child("scope"), r.Scope, v1.ClusterScope, v1.NamespacedScope, v1.AllScopes)...)
}

// alone wants something, and nothing beside what stands for all.
func alone[T ~string](values []T, all T, path *field.Path) field.ErrorList {
	if len(values) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	if len(values) > 1 && sets.New(values...).Has(all) {
		return field.ErrorList{field.Invalid(path, values, "if '*' is present, must not specify others")}
	}
	return nil
}

// validateResources refuses lists in which a wildcard has what another entry names.
func validateResources(resources []string, path *field.Path) field.ErrorList {
	if len(resources) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	anySub, anyResource := sets.New[string](), sets.New[string]() // of which resource, and which subresource
	everything, all, plain := false, false, false
	for i, r := range resources {
		at := path.Index(i)
		name, sub, has := strings.Cut(r, "/")
		switch {
		case r == "":
			errs = append(errs, field.Required(at, ""))
			continue
		case r == "*/*":
			everything = true
		case r == "*":
			all = true
		case !has:
			plain = true
		}
		if !has {
			continue
		}
		if anySub.Has(name) {
			errs = append(errs, field.Invalid(at, r, "if '"+name+"/*' is present, must not specify "+r))
		}
		if anyResource.Has(sub) {
			errs = append(errs, field.Invalid(at, r, "if '*/"+sub+"' is present, must not specify "+r))
		}
		if sub == "*" {
			anySub.Insert(name)
		}
		if name == "*" {
			anyResource.Insert(sub)
		}
	}
	if len(resources) > 1 && everything {
		errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
	}
	if all && plain {
		errs = append(errs, field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

func validateMatch(m *v1.MatchResources, labels bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.MatchPolicy == nil {
		errs = append(errs, field.Required(path.Child("matchPolicy"), ""))
	}
	errs = append(errs, check.SupportedIf(path.Child("matchPolicy"), m.MatchPolicy, v1.Exact, v1.Equivalent)...)
	for _, s := range []struct {
		name string
		s    *metav1.LabelSelector
	}{{"namespaceSelector", m.NamespaceSelector}, {"objectSelector", m.ObjectSelector}} {
		if s.s == nil {
			errs = append(errs, field.Required(path.Child(s.name), ""))
			continue
		}
		errs = append(errs, selector(s.s, labels, path.Child(s.name))...)
	}
	errs = append(errs, namedRules(m.ResourceRules, path.Child("resourceRules"))...)
	return append(errs, namedRules(m.ExcludeResourceRules, path.Child("excludeResourceRules"))...)
}

func namedRules(rules []v1.NamedRuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		at := path.Index(i)
		seen := sets.New[string]()
		for j, n := range rules[i].ResourceNames {
			name := at.Child("resourceNames").Index(j)
			errs = append(errs, check.Invalid(name, n, content.IsPathSegmentName(n))...)
			if seen.Has(n) {
				errs = append(errs, field.Duplicate(name, n))
			}
			seen.Insert(n)
		}
		errs = append(errs, validateRule(&rules[i].RuleWithOperations, true, at)...)
	}
	return errs
}
