package api

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

func validateScheduling(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector"))
	errs = append(errs, validateTolerations(s.Tolerations, path.Child("tolerations"))...)
	errs = append(errs, validateSpread(s.TopologySpreadConstraints, path.Child("topologySpreadConstraints"))...)
	a := s.Affinity
	if a == nil {
		return errs
	}
	path = path.Child("affinity")
	if n := a.NodeAffinity; n != nil {
		errs = append(errs, validateNodeAffinity(n, path.Child("nodeAffinity"))...)
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validateTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAffinity"))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validateTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, path.Child("podAntiAffinity"))...)
	}
	return errs
}

func validateTolerations(tolerations []corev1.Toleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		at := path.Index(i)
		if t.Key != "" {
			errs = append(errs, check.Qualified(at.Child("key"), t.Key)...)
		} else if t.Operator != corev1.TolerationOpExists {
			errs = append(errs, field.Invalid(at.Child("operator"), t.Operator, "operator must be Exists when `key` is empty, which means \"match all values and all keys\""))
		}
		if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(at.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
		}
		switch t.Operator {
		case corev1.TolerationOpEqual, "":
			errs = append(errs, check.Invalid(at.Child("operator"), t.Value, content.IsLabelValue(t.Value))...)
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(at.Child("operator"), t, "value must be empty when `operator` is 'Exists'"))
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			errs = append(errs, check.Invalid(at.Child("value"), t.Value, content.IsDecimalInteger(t.Value))...)
		default:
			errs = append(errs, field.NotSupported(at.Child("operator"), t.Operator, []corev1.TolerationOperator{
				corev1.TolerationOpEqual, corev1.TolerationOpExists, corev1.TolerationOpLt, corev1.TolerationOpGt,
			}))
		}
		errs = append(errs, check.OneOfOrNone(at.Child("effect"), t.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
	}
	return errs
}

func validateSpread(constraints []corev1.TopologySpreadConstraint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	type pair struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	seen := sets.New[pair]()
	for i := range constraints {
		c := &constraints[i]
		at := path.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "must be greater than zero"))
		}
		errs = append(errs, topologyKey(at.Child("topologyKey"), c.TopologyKey)...)
		errs = append(errs, check.OneOf(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)...)
		if p := (pair{c.TopologyKey, c.WhenUnsatisfiable}); seen.Has(p) {
			errs = append(errs, field.Duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), p))
		} else {
			seen.Insert(p)
		}
		if m := c.MinDomains; m != nil {
			if *m <= 0 {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m, "must be greater than zero"))
			}
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				errs = append(errs, field.Invalid(at.Child("minDomains"), *m, "can only use minDomains if whenUnsatisfiable=DoNotSchedule"))
			}
		}
		if p := c.NodeAffinityPolicy; p != nil {
			errs = append(errs, check.OneOf(at.Child("nodeAffinityPolicy"), *p, corev1.NodeInclusionPolicyIgnore, corev1.NodeInclusionPolicyHonor)...)
		}
		if p := c.NodeTaintsPolicy; p != nil {
			errs = append(errs, check.OneOf(at.Child("nodeTaintsPolicy"), *p, corev1.NodeInclusionPolicyIgnore, corev1.NodeInclusionPolicyHonor)...)
		}
		errs = append(errs, metavalidation.ValidateLabelSelector(c.LabelSelector, selectorOptions, at.Child("labelSelector"))...)
		errs = append(errs, matchKeys(c.MatchLabelKeys, c.LabelSelector, at.Child("matchLabelKeys"))...)
	}
	return errs
}

func topologyKey(path *field.Path, key string) field.ErrorList {
	if key == "" {
		return field.ErrorList{field.Required(path, "can not be empty")}
	}
	return metavalidation.ValidateLabelName(key, path)
}

// matchKeys are keys whose values come from the pod itself, so the selector must not name them too.
func matchKeys(keys []string, selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if len(keys) == 0 {
		return nil
	}
	if selector == nil {
		return field.ErrorList{field.Forbidden(path, "must not be specified when labelSelector is not set")}
	}
	named := sets.New[string]()
	for _, e := range selector.MatchExpressions {
		named.Insert(e.Key)
	}
	named = named.Union(sets.KeySet(selector.MatchLabels))
	var errs field.ErrorList
	for i, k := range keys {
		errs = append(errs, metavalidation.ValidateLabelName(k, path.Index(i))...)
		if named.Has(k) {
			errs = append(errs, field.Invalid(path.Index(i), k, "exists in both matchLabelKeys and labelSelector"))
		}
	}
	return errs
}

func validateNodeSelector(s *corev1.NodeSelector, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("nodeSelectorTerms")
	if len(s.NodeSelectorTerms) == 0 {
		errs = append(errs, field.Required(at, "must have at least one node selector term"))
	}
	for i, t := range s.NodeSelectorTerms {
		errs = append(errs, validateNodeTerm(t, at.Index(i))...)
	}
	return errs
}

func validateNodeAffinity(a *corev1.NodeAffinity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	required := path.Child("requiredDuringSchedulingIgnoredDuringExecution")
	errs = append(errs, validateNodeSelector(a.RequiredDuringSchedulingIgnoredDuringExecution, required)...)
	for i, p := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		at := path.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		errs = append(errs, weight(at.Child("weight"), p.Weight)...)
		errs = append(errs, validateNodeTerm(p.Preference, at.Child("preference"))...)
	}
	return errs
}

func weight(path *field.Path, w int32) field.ErrorList {
	if w < 1 || w > 100 {
		return field.ErrorList{field.Invalid(path, w, "must be in the range 1-100")}
	}
	return nil
}

func validateNodeTerm(t corev1.NodeSelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range t.MatchExpressions {
		at := path.Child("matchExpressions").Index(i)
		errs = append(errs, validateNodeRequirement(e, at)...)
		errs = append(errs, metavalidation.ValidateLabelName(e.Key, at.Child("key"))...)
	}
	for i, e := range t.MatchFields {
		at := path.Child("matchFields").Index(i)
		errs = append(errs, check.OneOf(at.Child("operator"), e.Operator, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn)...)
		if e.Key != metav1.ObjectNameField {
			errs = append(errs, field.Invalid(at.Child("key"), e.Key, "not a valid field selector key"))
		}
		if len(e.Values) != 1 {
			errs = append(errs, field.Required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
		}
		for j, v := range e.Values {
			errs = append(errs, check.Invalid(at.Child("values").Index(j), v, validation.IsDNS1123Subdomain(v))...)
		}
	}
	return errs
}

func validateNodeRequirement(e corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	at := path.Child("values")
	switch e.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(e.Values) == 0 {
			return field.ErrorList{field.Required(at, "must be specified when `operator` is 'In' or 'NotIn'")}
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(e.Values) > 0 {
			return field.ErrorList{field.Forbidden(at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")}
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(e.Values) != 1 {
			return field.ErrorList{field.Required(at, "must be specified single value when `operator` is 'Lt' or 'Gt'")}
		}
		if _, err := strconv.ParseInt(e.Values[0], 10, 64); err != nil {
			return field.ErrorList{field.Invalid(at.Index(0), e.Values[0], "must be a whole number when `operator` is 'Lt' or 'Gt'")}
		}
	default:
		return field.ErrorList{field.Invalid(path.Child("operator"), e.Operator, "not a valid selector operator")}
	}
	return nil
}

func validateTerms(must []corev1.PodAffinityTerm, prefer []corev1.WeightedPodAffinityTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range must {
		errs = append(errs, validateTerm(t, path.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))...)
	}
	for i, t := range prefer {
		at := path.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		errs = append(errs, weight(at.Child("weight"), t.Weight)...)
		errs = append(errs, validateTerm(t.PodAffinityTerm, at.Child("podAffinityTerm"))...)
	}
	return errs
}

func validateTerm(t corev1.PodAffinityTerm, path *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabelSelector(t.LabelSelector, selectorOptions, path.Child("labelSelector"))
	errs = append(errs, metavalidation.ValidateLabelSelector(t.NamespaceSelector, selectorOptions, path.Child("namespaceSelector"))...)
	for _, n := range t.Namespaces {
		errs = append(errs, check.Invalid(path.Child("namespace"), n, validation.IsDNS1123Label(n))...)
	}
	errs = append(errs, matchKeys(t.MatchLabelKeys, t.LabelSelector, path.Child("matchLabelKeys"))...)
	errs = append(errs, matchKeys(t.MismatchLabelKeys, t.LabelSelector, path.Child("mismatchLabelKeys"))...)
	return append(errs, topologyKey(path.Child("topologyKey"), t.TopologyKey)...)
}
