package batch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

func failurePolicy(s *batchv1.JobSpec, p *batchv1.PodFailurePolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("rules")
	if len(p.Rules) > maxFailureRules {
		errs = append(errs, field.TooMany(at, len(p.Rules), maxFailureRules))
	}
	names := sets.New[string]()
	for _, c := range slices.Concat(s.Template.Spec.Containers, s.Template.Spec.InitContainers) {
		names.Insert(c.Name)
	}
	for i := range p.Rules {
		errs = append(errs, failureRule(s, &p.Rules[i], names, at.Index(i))...)
	}
	return errs
}

func failureRule(s *batchv1.JobSpec, r *batchv1.PodFailurePolicyRule, names sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	actions := []batchv1.PodFailurePolicyAction{
		batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailJob,
		batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionIgnore,
	}
	switch {
	case r.Action == "":
		errs = append(errs, field.Required(path.Child("action"), "valid values: Count, FailIndex, FailJob, Ignore"))
	case r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil:
		errs = append(errs, field.Invalid(path.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set"))
	default:
		errs = append(errs, check.Supported(path.Child("action"), r.Action, actions...)...)
	}
	if r.OnExitCodes != nil {
		errs = append(errs, exitCodes(r.OnExitCodes, names, path.Child("onExitCodes"))...)
	}
	at := path.Child("onPodConditions")
	if len(r.OnPodConditions) > maxConditions {
		errs = append(errs, field.TooMany(at, len(r.OnPodConditions), maxConditions))
	}
	for i, c := range r.OnPodConditions {
		errs = append(errs, check.Qualified(at.Index(i).Child("type"), string(c.Type))...)
		if c.Status == "" {
			errs = append(errs, field.Required(at.Index(i).Child("status"), "valid values: False, True, Unknown"))
			continue
		}
		errs = append(errs, check.Supported(at.Index(i).Child("status"), c.Status, corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown)...)
	}
	switch {
	case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
	case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
	}
	return errs
}

func exitCodes(r *batchv1.PodFailurePolicyOnExitCodesRequirement, names sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Operator == "" {
		errs = append(errs, field.Required(path.Child("operator"), "valid values: In, NotIn"))
	} else {
		errs = append(errs, check.Supported(path.Child("operator"), r.Operator, batchv1.PodFailurePolicyOnExitCodesOpIn, batchv1.PodFailurePolicyOnExitCodesOpNotIn)...)
	}
	if r.ContainerName != nil && !names.Has(*r.ContainerName) {
		errs = append(errs, field.Invalid(path.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	at := path.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		return append(errs, field.Invalid(at, r.Values, "at least one value is required"))
	case n > maxExitCodes:
		errs = append(errs, field.TooMany(at, n, maxExitCodes))
	}
	seen := sets.New[int32]()
	ordered := true
	for i, v := range r.Values {
		if r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && v == 0 {
			errs = append(errs, field.Invalid(at.Index(i), v, "must not be 0 for the In operator"))
		}
		if seen.Has(v) {
			errs = append(errs, field.Duplicate(at.Index(i), v))
		}
		seen.Insert(v)
		ordered = ordered && (i == 0 || r.Values[i-1] <= v)
	}
	if !ordered {
		errs = append(errs, field.Invalid(at, r.Values, "must be ordered"))
	}
	return errs
}

func successPolicy(s *batchv1.JobSpec, p *batchv1.SuccessPolicy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("rules")
	if len(p.Rules) == 0 {
		errs = append(errs, field.Required(at, "at least one rules must be specified when the successPolicy is specified"))
	}
	if len(p.Rules) > maxSuccessRules {
		errs = append(errs, field.TooMany(at, len(p.Rules), maxSuccessRules))
	}
	for i, r := range p.Rules {
		path := at.Index(i)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			errs = append(errs, field.Required(path, "at least one of succeededCount or succeededIndexes must be specified"))
			continue
		}
		total := int32(-1)
		if r.SucceededIndexes != nil {
			if len(*r.SucceededIndexes) > maxSuccessIndexes {
				errs = append(errs, field.TooLong(path.Child("succeededIndexes"), *r.SucceededIndexes, maxSuccessIndexes))
			}
			n, err := countIndexes(*r.SucceededIndexes, s.Completions)
			if err != nil {
				errs = append(errs, field.Invalid(path.Child("succeededIndexes"), *r.SucceededIndexes, "must be a set of intervals: "+err.Error()))
			} else {
				total = n
			}
		}
		if c := r.SucceededCount; c != nil {
			at := path.Child("succeededCount")
			errs = append(errs, check.AtLeast(at, *c, 0)...)
			if s.Completions != nil && *c > *s.Completions {
				errs = append(errs, field.Invalid(at, *c, "must be less than or equal to the number of specified completions"))
			}
			if total >= 0 && *c > total {
				errs = append(errs, field.Invalid(at, *c, "must be less than or equal to the number of indexes in the specified succeededIndexes field"))
			}
		}
	}
	return errs
}

// countIndexes reads a list such as 1,3-5,7: ascending, none twice, all below the completions.
func countIndexes(text string, completions *int32) (int32, error) {
	if text == "" {
		return 0, nil
	}
	var total int32
	last := int32(-1)
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(part, "-")
		from, err := index(low, completions)
		if err != nil {
			return 0, err
		}
		to := from
		if ranged {
			if to, err = index(high, completions); err != nil {
				return 0, err
			}
			if to <= from {
				return 0, fmt.Errorf("non-increasing order in %q", part)
			}
		}
		if from <= last {
			return 0, fmt.Errorf("non-increasing order at %q", part)
		}
		total += to - from + 1
		last = to
	}
	return total, nil
}

func index(text string, completions *int32) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not an index", text)
	}
	if completions != nil && n >= int64(*completions) {
		return 0, fmt.Errorf("index %d is not below the completions", n)
	}
	return int32(n), nil
}
