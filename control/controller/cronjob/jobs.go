package cronjob

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// end is how a job has ended, if it has.
func end(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func over(j *batchv1.Job) bool { return end(j) != "" }

func reference(j *batchv1.Job) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: j.Namespace, Name: j.Name, UID: j.UID, ResourceVersion: j.ResourceVersion,
	}
}

func activeHas(c *batchv1.CronJob, j *batchv1.Job) bool {
	return slices.ContainsFunc(c.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
}

// running has the status say which jobs run, and when the last one succeeded.
func (k *keeper) running(ctx context.Context, c *batchv1.CronJob, jobs []*batchv1.Job) error {
	is := map[string]bool{}
	for _, j := range jobs {
		is[string(j.UID)] = true
		found := activeHas(c, j)
		switch {
		case !found && !over(j) && j.DeletionTimestamp == nil:
			// Whoever made it was killed before the status said so.
			k.events.Eventf(c, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
			c.Status.Active = append(c.Status.Active, reference(j))
		case found && over(j):
			c.Status.Active = slices.DeleteFunc(c.Status.Active, func(r corev1.ObjectReference) bool { return r.UID == j.UID })
			k.events.Eventf(c, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, end(j))
		}
		if at := j.Status.CompletionTime; end(j) == batchv1.JobComplete && at != nil {
			if last := c.Status.LastSuccessfulTime; last == nil || at.After(last.Time) {
				c.Status.LastSuccessfulTime = at
			}
		}
	}
	var failed []error
	for _, r := range slices.Clone(c.Status.Active) {
		if is[string(r.UID)] {
			continue
		}
		// The cache may be late.
		j, err := k.client.BatchV1().Jobs(c.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		switch {
		case err == nil && j.UID == r.UID:
		case err == nil || apierrors.IsNotFound(err):
			k.events.Eventf(c, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", r.Name)
			c.Status.Active = slices.DeleteFunc(c.Status.Active, func(a corev1.ObjectReference) bool { return a.UID == r.UID })
		default:
			failed = append(failed, fmt.Errorf("read job %s/%s: %w", c.Namespace, r.Name, err))
		}
	}
	return errors.Join(failed...)
}

// clean removes the oldest of too many jobs that have ended.
func (k *keeper) clean(ctx context.Context, c *batchv1.CronJob, jobs []*batchv1.Job) error {
	var failed []error
	for of, limit := range map[batchv1.JobConditionType]*int32{
		batchv1.JobComplete: c.Spec.SuccessfulJobsHistoryLimit, batchv1.JobFailed: c.Spec.FailedJobsHistoryLimit,
	} {
		if limit == nil {
			continue
		}
		var all []*batchv1.Job
		for _, j := range jobs {
			if end(j) == of && j.DeletionTimestamp == nil {
				all = append(all, j)
			}
		}
		slices.SortFunc(all, func(a, b *batchv1.Job) int {
			switch {
			case a.Status.StartTime == nil && b.Status.StartTime != nil:
				return 1
			case a.Status.StartTime != nil && b.Status.StartTime == nil:
				return -1
			case a.Status.StartTime != nil && !a.Status.StartTime.Equal(b.Status.StartTime):
				return a.Status.StartTime.Compare(b.Status.StartTime.Time)
			}
			return strings.Compare(a.Name, b.Name)
		})
		for _, j := range all[:max(len(all)-int(*limit), 0)] {
			failed = append(failed, k.remove(ctx, c, j))
		}
	}
	return errors.Join(failed...)
}

// replace ends the jobs that run, since the next one takes their place.
func (k *keeper) replace(ctx context.Context, c *batchv1.CronJob, jobs []*batchv1.Job) error {
	for _, j := range jobs {
		if over(j) {
			continue
		}
		if err := k.remove(ctx, c, j); err != nil {
			return err
		}
	}
	c.Status.Active = nil
	return nil
}

func (k *keeper) remove(ctx context.Context, c *batchv1.CronJob, j *batchv1.Job) error {
	policy := metav1.DeletePropagationBackground
	err := k.client.BatchV1().Jobs(j.Namespace).Delete(ctx, j.Name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &j.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		k.events.Eventf(c, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
		return fmt.Errorf("remove job %s/%s: %w", j.Namespace, j.Name, err)
	}
	k.made.Ended(cache.MetaObjectToName(c), j)
	k.events.Eventf(c, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", j.Name)
	return nil
}
