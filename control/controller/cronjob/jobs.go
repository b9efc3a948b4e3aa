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
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/set"
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

// mostAsked is how many jobs that the cache does not have are asked for in a look. The status is also what users have
// written, in which there is room for 10,000; those that do run are found by their owner.
const mostAsked = 100

// running has the status say which jobs run, and when the last one succeeded.
func (k *keeper) running(ctx context.Context, c *batchv1.CronJob, jobs []*batchv1.Job) error {
	listed := set.New[types.UID]()
	for _, r := range c.Status.Active {
		listed.Insert(r.UID)
	}
	runs := map[types.UID]bool{}
	var found []corev1.ObjectReference
	for _, j := range jobs {
		runs[j.UID] = !over(j)
		switch {
		case !listed.Has(j.UID) && !over(j) && j.DeletionTimestamp == nil:
			// Whoever made it was killed before the status said so.
			k.events.Eventf(c, corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
			found = append(found, reference(j))
		case listed.Has(j.UID) && over(j):
			k.events.Eventf(c, corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, end(j))
		}
		if at := j.Status.CompletionTime; end(j) == batchv1.JobComplete && at != nil {
			if last := c.Status.LastSuccessfulTime; last == nil || at.After(last.Time) {
				c.Status.LastSuccessfulTime = at
			}
		}
	}
	var failed []error
	asked := 0
	c.Status.Active = append(slices.DeleteFunc(c.Status.Active, func(r corev1.ObjectReference) bool {
		if is, known := runs[r.UID]; known {
			return !is
		}
		// The cache may be late.
		there := false
		if asked++; asked <= mostAsked && r.Name != "" && len(content.IsPathSegmentName(r.Name)) == 0 {
			var err error
			if there, err = k.there(ctx, c.Namespace, r); err != nil {
				failed = append(failed, err)
				return false
			}
		}
		if !there {
			k.events.Eventf(c, corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", r.Name)
		}
		return !there
	}), found...)
	return errors.Join(failed...)
}

// there says whether the API has a job.
func (k *keeper) there(ctx context.Context, namespace string, r corev1.ObjectReference) (bool, error) {
	j, err := k.client.BatchV1().Jobs(namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read job %s/%s: %w", namespace, r.Name, err)
	}
	return j.UID == r.UID, nil
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
