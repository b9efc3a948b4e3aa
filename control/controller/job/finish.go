package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/control/controller"
)

func condition(all []batchv1.JobCondition, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range all {
		if all[i].Type == kind {
			return &all[i]
		}
	}
	return nil
}

func is(all []batchv1.JobCondition, kind batchv1.JobConditionType) bool {
	c := condition(all, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// ended says whether all that there was to do about a job is done.
func ended(j *batchv1.Job) bool {
	return is(j.Status.Conditions, batchv1.JobComplete) || is(j.Status.Conditions, batchv1.JobFailed)
}

// judge says how a job ends, if it does: what was said before stays said.
func (s *state) judge() {
	if c := condition(s.status.Conditions, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		s.target = s.ends(batchv1.JobComplete, c.Reason, c.Message)
		return
	}
	if c := condition(s.status.Conditions, batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		s.target = s.ends(batchv1.JobFailed, c.Reason, c.Message)
		return
	}
	if reason, message := s.fails(); reason != "" {
		s.mark(batchv1.JobFailureTarget, reason, message)
		s.target = s.ends(batchv1.JobFailed, reason, message)
		return
	}
	if reason, message := s.succeeds(); reason != "" {
		s.mark(batchv1.JobSuccessCriteriaMet, reason, message)
		s.target = s.ends(batchv1.JobComplete, reason, message)
	}
}

func (s *state) ends(kind batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	at := metav1.NewTime(s.now)
	return &batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: at, LastTransitionTime: at}
}

func (s *state) mark(kind batchv1.JobConditionType, reason, message string) {
	c := s.ends(kind, reason, message)
	if old := condition(s.status.Conditions, kind); old != nil {
		*old = *c
		return
	}
	s.status.Conditions = append(s.status.Conditions, *c)
}

func (s *state) fails() (reason, message string) {
	spec := s.job.Spec
	for _, p := range s.pods {
		if s.lostPod(p) {
			if v := judge(spec.PodFailurePolicy, p); v.action == batchv1.PodFailurePolicyActionFailJob {
				return batchv1.JobReasonPodFailurePolicy, v.message
			}
		}
	}
	limit := 6
	if spec.BackoffLimit != nil {
		limit = int(*spec.BackoffLimit)
	}
	if s.failed > limit || s.restarts(limit) {
		return batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit"
	}
	if spec.ActiveDeadlineSeconds != nil && !suspended(s.job) && s.status.StartTime != nil {
		left := s.status.StartTime.Add(controller.Seconds(*spec.ActiveDeadlineSeconds)).Sub(s.now)
		if left <= 0 {
			return batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline"
		}
		s.plan.again = left
	}
	if !s.perIndex() {
		return "", ""
	}
	switch n := s.lost.count(); {
	case spec.MaxFailedIndexes != nil && n > int(*spec.MaxFailedIndexes):
		return batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes"
	case n > 0 && n+s.done.count() >= completions(s.job):
		return batchv1.JobReasonFailedIndexes, "Job has failed indexes"
	}
	return "", ""
}

// restarts says whether the containers of pods that restart them have failed as often as pods may.
func (s *state) restarts(limit int) bool {
	if s.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	n := 0
	for _, p := range s.pods {
		if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			n += int(c.RestartCount)
		}
	}
	if limit == 0 {
		return n > 0
	}
	return n >= limit
}

func (s *state) succeeds() (reason, message string) {
	if indexed(s.job) {
		if message, is := succeeds(s.job.Spec.SuccessPolicy, completions(s.job), s.done); is {
			return batchv1.JobReasonSuccessPolicy, message
		}
	}
	enough := s.job.Spec.Completions != nil && s.succeeded >= completions(s.job)
	if s.job.Spec.Completions == nil {
		enough = s.succeeded > 0 && len(s.active) == 0
	}
	if !enough {
		return "", ""
	}
	return batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods"
}

// finish ends what still runs, and says that the job has ended when nothing does and all is counted.
func (s *state) finish() {
	s.plan.end = s.active
	u := s.status.UncountedTerminatedPods
	if len(s.active) > 0 || len(s.terminating) > 0 || len(u.Succeeded) > 0 || len(u.Failed) > 0 || slices.ContainsFunc(s.pods, tracked) {
		return
	}
	s.status.Conditions = append(s.status.Conditions, *s.target)
	if s.target.Type == batchv1.JobFailed {
		s.plan.events = append(s.plan.events, event{corev1.EventTypeWarning, s.target.Reason, s.target.Message})
		return
	}
	s.status.CompletionTime = &metav1.Time{Time: s.now}
	s.plan.events = append(s.plan.events, event{corev1.EventTypeNormal, "Completed", "Job completed"})
}

// resume says whether the job is suspended. What it was active for before does not count when it goes on.
func (s *state) resume() {
	old := condition(s.status.Conditions, batchv1.JobSuspended)
	switch {
	case suspended(s.job) && (old == nil || old.Status != corev1.ConditionTrue):
		s.mark(batchv1.JobSuspended, "JobSuspended", "Job suspended")
		s.status.StartTime = nil
		s.plan.events = append(s.plan.events, event{corev1.EventTypeNormal, "Suspended", "Job suspended"})
	case !suspended(s.job) && old != nil && old.Status == corev1.ConditionTrue:
		s.mark(batchv1.JobSuspended, "JobResumed", "Job resumed")
		condition(s.status.Conditions, batchv1.JobSuspended).Status = corev1.ConditionFalse
		s.status.StartTime = &metav1.Time{Time: s.now}
		s.plan.events = append(s.plan.events, event{corev1.EventTypeNormal, "Resumed", "Job resumed"})
	}
}
