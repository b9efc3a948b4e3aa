package batch

import (
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// SetCronJobDefaults fills in what is missing; the template's own is left to the jobs that are made of it.
func SetCronJobDefaults(o *batchv1.CronJob) {
	api.SetTemplateDefaults(&o.Spec.JobTemplate.Spec.Template.Spec)
	if p := o.Spec.JobTemplate.Spec.PodFailurePolicy; p != nil {
		setConditions(p)
	}
	check.Or(&o.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	check.OrNew(&o.Spec.Suspend, false)
	check.OrNew(&o.Spec.SuccessfulJobsHistoryLimit, 3)
	check.OrNew(&o.Spec.FailedJobsHistoryLimit, 1)
}

// ValidateCronJob holds a new cron job to its rules.
func ValidateCronJob(o *batchv1.CronJob) field.ErrorList {
	errs := append(check.Meta(o, true, check.SubdomainName), cronSpec(&o.Spec, nil)...)
	if len(o.Name) > maxCronName {
		errs = append(errs, field.Invalid(field.NewPath("metadata").Child("name"), o.Name, "must be no more than 52 characters"))
	}
	return errs
}

// ValidateCronJobUpdate holds a changed cron job to its rules.
func ValidateCronJobUpdate(o, old *batchv1.CronJob) field.ErrorList {
	return append(check.MetaUpdate(o, old), cronSpec(&o.Spec, &old.Spec)...)
}

func cronSpec(s, old *batchv1.CronJobSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	at := path.Child("schedule")
	if s.Schedule == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, schedule(s, old, at)...)
	}
	if z := s.TimeZone; z != nil && (old == nil || old.TimeZone == nil || *old.TimeZone != *z) {
		errs = append(errs, timeZone(*z, path.Child("timeZone"))...)
	}
	errs = append(errs, check.AtLeastIf(path.Child("startingDeadlineSeconds"), s.StartingDeadlineSeconds, 0)...)
	errs = append(errs, check.OneOf(path.Child("concurrencyPolicy"), s.ConcurrencyPolicy, batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)...)
	errs = append(errs, check.AtLeastIf(path.Child("successfulJobsHistoryLimit"), s.SuccessfulJobsHistoryLimit, 0)...)
	errs = append(errs, check.AtLeastIf(path.Child("failedJobsHistoryLimit"), s.FailedJobsHistoryLimit, 0)...)
	template := path.Child("jobTemplate", "spec")
	job := &s.JobTemplate.Spec
	if job.Selector != nil {
		errs = append(errs, field.Invalid(template.Child("selector"), job.Selector, "`selector` will be auto-generated"))
	}
	if job.ManualSelector != nil && *job.ManualSelector {
		errs = append(errs, check.Supported(template.Child("manualSelector"), "true", "nil", "false")...)
	}
	return append(errs, anyJob(job, template)...)
}

func schedule(s, old *batchv1.CronJobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	// The library panics on a zone without a schedule behind it.
	if strings.TrimSpace(s.Schedule) == "" || strings.HasPrefix(s.Schedule, "TZ=") && !strings.Contains(s.Schedule, " ") ||
		strings.HasPrefix(s.Schedule, "CRON_TZ=") && !strings.Contains(s.Schedule, " ") {
		return field.ErrorList{field.Invalid(path, s.Schedule, "must have five fields")}
	}
	if _, err := cron.ParseStandard(s.Schedule); err != nil {
		errs = append(errs, field.Invalid(path, s.Schedule, err.Error()))
	}
	if strings.Contains(s.Schedule, "TZ") {
		switch known := old != nil && old.Schedule == s.Schedule; {
		case s.TimeZone != nil && !(known && old.TimeZone != nil):
			errs = append(errs, field.Invalid(path, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
		case s.TimeZone == nil && !known:
			errs = append(errs, field.Invalid(path, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
		}
	}
	return errs
}

// timeZone refuses what depends on the machine.
func timeZone(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Invalid(path, name, "timeZone must be nil or non-empty string")}
	}
	if strings.EqualFold(name, "Local") {
		return field.ErrorList{field.Invalid(path, name, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")}
	}
	if strings.Contains(name, "..") || strings.HasPrefix(name, "/") {
		return field.ErrorList{field.Invalid(path, name, "unknown time zone")}
	}
	if _, err := time.LoadLocation(name); err != nil {
		return field.ErrorList{field.Invalid(path, name, err.Error())}
	}
	return nil
}
