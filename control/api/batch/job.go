// Package batch has the defaults and rules of jobs, and of what starts them by the clock.
package batch

import (
	"fmt"
	"math"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// Limits of jobs, which keep the size of a job's status bounded.
const (
	backoffLimit          = 6
	maxIndexes            = 100_000 // completions of a job whose failures are counted by index or told apart
	maxIndexParallelism   = 10_000
	maxIndexedParallelism = 100_000
	maxFailureRules       = 20
	maxExitCodes          = 255
	maxConditions         = 20
	maxSuccessRules       = 20
	maxSuccessIndexes     = 64 << 10 // bytes of the list
	maxManagedBy          = 63
	maxCronName           = 63 - 11 // a job's name has the minute behind it
)

// SetJobDefaults fills in what is missing.
func SetJobDefaults(o *batchv1.Job) {
	SetJobSpecDefaults(&o.Spec)
	if len(o.Labels) == 0 {
		o.Labels = o.Spec.Template.Labels
	}
}

// SetJobSpecDefaults fills in what a job, but not the template of one, misses.
func SetJobSpecDefaults(s *batchv1.JobSpec) {
	api.SetTemplateDefaults(&s.Template.Spec)
	if s.Completions == nil && s.Parallelism == nil {
		check.OrNew(&s.Completions, 1)
	}
	check.OrNew(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		check.OrNew(&s.BackoffLimit, math.MaxInt32)
	}
	check.OrNew(&s.BackoffLimit, backoffLimit)
	check.OrNew(&s.CompletionMode, batchv1.NonIndexedCompletion)
	check.OrNew(&s.Suspend, false)
	replace := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replace = batchv1.Failed
		setConditions(s.PodFailurePolicy)
	}
	check.OrNew(&s.PodReplacementPolicy, replace)
	check.OrNew(&s.ManualSelector, false)
}

func setConditions(p *batchv1.PodFailurePolicy) {
	for i := range p.Rules {
		for j := range p.Rules[i].OnPodConditions {
			check.Or(&p.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
		}
	}
}

// ValidateJob holds a new job, which has its selector already, to its rules.
func ValidateJob(o *batchv1.Job) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	errs = append(errs, generatedSelector(o)...)
	return append(errs, jobSpec(&o.Spec, nil, field.NewPath("spec"))...)
}

// ValidateJobUpdate holds a changed job to its rules: what it is to do stays, but for jobs that have not started.
func ValidateJobUpdate(o, old *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := append(check.MetaUpdate(o, old), jobSpec(&o.Spec, old.Spec.Selector, path)...)
	errs = append(errs, generatedSelector(o)...)
	errs = append(errs, completions(o, old, path)...)
	errs = append(errs, check.Immutable(path.Child("selector"), o.Spec.Selector, old.Spec.Selector)...)
	errs = append(errs, sameTemplate(o, old, path.Child("template"))...)
	for _, f := range []struct {
		name     string
		now, was any
	}{
		{"completionMode", o.Spec.CompletionMode, old.Spec.CompletionMode},
		{"podFailurePolicy", o.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy},
		{"backoffLimitPerIndex", o.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex},
		{"managedBy", o.Spec.ManagedBy, old.Spec.ManagedBy},
		{"successPolicy", o.Spec.SuccessPolicy, old.Spec.SuccessPolicy},
	} {
		errs = append(errs, check.Immutable(path.Child(f.name), f.now, f.was)...)
	}
	return errs
}

func isIndexed(s *batchv1.JobSpec) bool {
	return s.CompletionMode != nil && *s.CompletionMode == batchv1.IndexedCompletion
}

// completions of an indexed job change together with its parallelism, as of a job that learns and grows.
func completions(o, old *batchv1.Job, path *field.Path) field.ErrorList {
	at := path.Child("completions")
	if equality.Semantic.DeepEqual(o.Spec.Completions, old.Spec.Completions) {
		return nil
	}
	if !isIndexed(&o.Spec) || o.Spec.Completions == nil || old.Spec.Completions == nil || o.Spec.Parallelism == nil {
		return check.Immutable(at, o.Spec.Completions, old.Spec.Completions)
	}
	if *o.Spec.Completions != *o.Spec.Parallelism {
		return field.ErrorList{field.Invalid(at, *o.Spec.Completions, fmt.Sprintf("can only be modified in tandem with %s", path.Child("parallelism")))}
	}
	return nil
}

func sameTemplate(o, old *batchv1.Job, path *field.Path) field.ErrorList {
	now, was := o.Spec.Template.DeepCopy(), old.Spec.Template.DeepCopy()
	if old.Spec.Suspend != nil && *old.Spec.Suspend && old.Status.StartTime == nil {
		// A queue says where a job that waits is to run.
		was.Labels, was.Annotations = now.Labels, now.Annotations
		was.Spec.NodeSelector, was.Spec.Tolerations, was.Spec.SchedulingGates = now.Spec.NodeSelector, now.Spec.Tolerations, now.Spec.SchedulingGates
		switch {
		case now.Spec.Affinity == nil:
			if was.Spec.Affinity != nil {
				was.Spec.Affinity.NodeAffinity = nil
			}
		case was.Spec.Affinity == nil:
			was.Spec.Affinity = &corev1.Affinity{NodeAffinity: now.Spec.Affinity.NodeAffinity}
		default:
			was.Spec.Affinity.NodeAffinity = now.Spec.Affinity.NodeAffinity
		}
		if a := was.Spec.Affinity; a != nil && *a == (corev1.Affinity{}) && now.Spec.Affinity == nil {
			was.Spec.Affinity = nil
		}
	}
	errs := check.Immutable(path.Child("metadata"), now.ObjectMeta, was.ObjectMeta)
	return append(errs, check.Immutable(path.Child("spec"), now.Spec, was.Spec)...)
}

// generatedSelector holds the labels that the server gives a job to the job's own identity.
func generatedSelector(o *batchv1.Job) field.ErrorList {
	if o.Spec.ManualSelector != nil && *o.Spec.ManualSelector || o.Spec.Selector == nil {
		return nil
	}
	var errs field.ErrorList
	expected := map[string]string{}
	path := field.NewPath("spec", "template", "metadata", "labels")
	if o.UID == "" {
		errs = append(errs, field.Required(field.NewPath("metadata").Child("uid"), ""))
	}
	for key, want := range map[string]string{
		batchv1.ControllerUidLabel: string(o.UID), batchv1.JobNameLabel: o.Name,
		"controller-uid": string(o.UID), "job-name": o.Name,
	} {
		have, ok := o.Spec.Template.Labels[key]
		switch {
		case !ok:
			errs = append(errs, field.Required(path.Key(key), fmt.Sprintf("must be '%s'", want)))
		case have != want:
			errs = append(errs, field.Invalid(path.Key(key), o.Spec.Template.Labels, fmt.Sprintf("must be '%s'", want)))
		}
	}
	expected[batchv1.ControllerUidLabel] = string(o.UID)
	if s, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil && !s.Matches(labels.Set(expected)) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), o.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

func jobSpec(s *batchv1.JobSpec, old *metav1.LabelSelector, path *field.Path) field.ErrorList {
	errs := anyJob(s, path)
	at := path.Child("selector")
	if s.Selector == nil {
		return append(errs, field.Required(at, ""))
	}
	errs = append(errs, check.SelectorAsBefore(at, s.Selector, old)...)
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil && !selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// anyJob holds a job, or the template of one, which has no selector yet, to its rules.
func anyJob(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	errs := check.AtLeastIf(path.Child("parallelism"), s.Parallelism, 0)
	errs = append(errs, check.AtLeastIf(path.Child("completions"), s.Completions, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("activeDeadlineSeconds"), s.ActiveDeadlineSeconds, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("backoffLimit"), s.BackoffLimit, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("ttlSecondsAfterFinished"), s.TTLSecondsAfterFinished, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("backoffLimitPerIndex"), s.BackoffLimitPerIndex, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("maxFailedIndexes"), s.MaxFailedIndexes, 0)...)
	if m := s.ManagedBy; m != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(path.Child("managedBy"), *m)...)
		if len(*m) > maxManagedBy {
			errs = append(errs, field.TooLong(path.Child("managedBy"), *m, maxManagedBy))
		}
	}
	errs = append(errs, indexes(s, path)...)
	if p := s.PodFailurePolicy; p != nil {
		errs = append(errs, failurePolicy(s, p, path.Child("podFailurePolicy"))...)
	}
	if p := s.SuccessPolicy; p != nil {
		if !isIndexed(s) {
			errs = append(errs, field.Invalid(path.Child("successPolicy"), *p, "requires indexed completion mode"))
		} else {
			errs = append(errs, successPolicy(s, p, path.Child("successPolicy"))...)
		}
	}
	errs = append(errs, replacement(s, path)...)
	at := path.Child("template")
	errs = append(errs, api.ValidateTemplate(&s.Template, at)...)
	policy := at.Child("spec", "restartPolicy")
	switch {
	case s.Template.Spec.RestartPolicy == corev1.RestartPolicyAlways || s.Template.Spec.RestartPolicy == "":
		errs = append(errs, field.Required(policy, "valid values: \"OnFailure\", \"Never\""))
	case s.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure && s.Template.Spec.RestartPolicy != corev1.RestartPolicyNever:
		errs = append(errs, check.Supported(policy, s.Template.Spec.RestartPolicy, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)...)
	case s.PodFailurePolicy != nil && s.Template.Spec.RestartPolicy != corev1.RestartPolicyNever:
		errs = append(errs, field.Invalid(policy, s.Template.Spec.RestartPolicy, "only \"Never\" is supported when podFailurePolicy is specified"))
	}
	return errs
}

func indexes(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m := s.CompletionMode; m != nil {
		if *m != batchv1.NonIndexedCompletion && *m != batchv1.IndexedCompletion {
			errs = append(errs, check.Supported(path.Child("completionMode"), *m, batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)...)
		}
	}
	if !isIndexed(s) {
		if s.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if s.MaxFailedIndexes != nil {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "requires indexed completion mode"))
		}
		return errs
	}
	if s.Completions == nil {
		errs = append(errs, field.Required(path.Child("completions"), "when completion mode is Indexed"))
	}
	if s.Parallelism != nil && *s.Parallelism > maxIndexedParallelism {
		errs = append(errs, field.Invalid(path.Child("parallelism"), *s.Parallelism, fmt.Sprintf("must be less than or equal to %d when completion mode is Indexed", maxIndexedParallelism)))
	}
	if s.Completions != nil && s.MaxFailedIndexes != nil && *s.MaxFailedIndexes > *s.Completions {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "must be less than or equal to completions"))
	}
	if s.MaxFailedIndexes != nil && *s.MaxFailedIndexes > maxIndexes {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, fmt.Sprintf("must be less than or equal to %d", maxIndexes)))
	}
	if s.Completions != nil && *s.Completions > maxIndexes && s.BackoffLimitPerIndex != nil {
		if s.MaxFailedIndexes == nil {
			errs = append(errs, field.Required(path.Child("maxFailedIndexes"), fmt.Sprintf("must be specified when completions is above %d", maxIndexes)))
		}
		if s.Parallelism != nil && *s.Parallelism > maxIndexParallelism {
			errs = append(errs, field.Invalid(path.Child("parallelism"), *s.Parallelism, fmt.Sprintf("must be less than or equal to %d when completions are above %d and used with backoff limit per index", maxIndexParallelism, maxIndexes)))
		}
		if s.MaxFailedIndexes != nil && *s.MaxFailedIndexes > maxIndexParallelism {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, fmt.Sprintf("must be less than or equal to %d when completions are above %d and used with backoff limit per index", maxIndexParallelism, maxIndexes)))
		}
	}
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	return errs
}

func replacement(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	p := s.PodReplacementPolicy
	if p == nil {
		return nil
	}
	at := path.Child("podReplacementPolicy")
	if s.PodFailurePolicy != nil {
		return check.Supported(at, *p, batchv1.Failed)
	}
	return check.Supported(at, *p, batchv1.Failed, batchv1.TerminatingOrFailed)
}
