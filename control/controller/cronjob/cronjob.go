// Package cronjob starts jobs by the clock.
package cronjob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/owned"
)

const (
	workers = 5
	// clockStep is how late the clock may be behind what a start is waited for by.
	clockStep = 100 * time.Millisecond
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

type keeper struct {
	client kubernetes.Interface
	crons  batchlisters.CronJobLister
	jobs   owned.Index[*batchv1.Job]
	events record.EventRecorder
	own    *owned.Writes // of cron jobs themselves
	made   *owned.Writes // of their jobs
	now    func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, from batchinformers.Interface, log *slog.Logger) (controller.Controller, error) {
	crons, jobs := from.CronJobs(), from.Jobs()
	index, err := owned.NewIndex[*batchv1.Job](jobs.Informer())
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, "cronjob-controller", func(events record.EventRecorder) (controller.Controller, error) {
		k := &keeper{
			client: client, crons: crons.Lister(), jobs: index, events: events, now: time.Now,
			own: owned.NewWrites(crons.Informer().GetIndexer()), made: owned.NewWrites(index.Cache()),
		}
		return controller.NewLoop(log, workers, k.sync).
			Watch(crons.Informer(), owned.Key).
			Watch(jobs.Informer(), owned.Keys(kind, nil)), nil
	})
}

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	c, err := k.crons.CronJobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		k.own.Forget(key)
		k.made.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find cron job %s: %w", key, err)
	}
	if k.own.Behind(key) || k.made.Behind(key) {
		return owned.Late, nil
	}
	c = c.DeepCopy()
	before := c.Status.DeepCopy()
	jobs := k.jobs.Of(c.UID)
	failed := []error{k.running(ctx, c, jobs), k.clean(ctx, c, jobs)}
	again := time.Duration(0)
	if c.DeletionTimestamp == nil {
		again, err = k.start(ctx, c, jobs)
		failed = append(failed, err)
	}
	if !equality.Semantic.DeepEqual(*before, c.Status) {
		now, err := k.client.BatchV1().CronJobs(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
		switch {
		case err == nil:
			k.own.Wrote(key, now)
		case !apierrors.IsNotFound(err):
			failed = append(failed, fmt.Errorf("write status of cron job %s: %w", key, err))
		}
	}
	return again, errors.Join(failed...)
}

// start starts a job if it is time, and says when it is time next.
func (k *keeper) start(ctx context.Context, c *batchv1.CronJob, jobs []*batchv1.Job) (time.Duration, error) {
	if c.Spec.Suspend != nil && *c.Spec.Suspend {
		return 0, nil
	}
	s, err := scheduleOf(c)
	if err != nil {
		reason := "UnparseableSchedule"
		if errors.Is(err, errZone) {
			reason = "UnknownTimeZone"
		}
		k.events.Eventf(c, corev1.EventTypeWarning, reason, "invalid schedule %q: %v", c.Spec.Schedule, err)
		return 0, nil // another schedule leads to the next look
	}
	now := k.now()
	at, count := missed(s, since(c, now), now)
	if count > many {
		k.events.Eventf(c, corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times: %d or more. Set or decrease .spec.startingDeadlineSeconds or check clock skew", count)
	}
	next := until(s, c, now)
	if at.IsZero() || started(c, at) {
		return next, nil
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil && at.Add(controller.Seconds(*d)).Before(now) {
		k.events.Eventf(c, corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
		return next, nil
	}
	if len(c.Status.Active) > 0 {
		switch c.Spec.ConcurrencyPolicy {
		case batchv1.ForbidConcurrent:
			k.events.Eventf(c, corev1.EventTypeNormal, "JobAlreadyActive", "Not starting job because prior execution is running and concurrency policy is Forbid")
			return next, nil
		case batchv1.ReplaceConcurrent:
			if err := k.replace(ctx, c, jobs); err != nil {
				return next, err
			}
		}
	}
	return next, k.create(ctx, c, at)
}

// create makes the job of a start. Its name is that of the start, so that nobody makes it twice.
func (k *keeper) create(ctx context.Context, c *batchv1.CronJob, at time.Time) error {
	j := jobOf(c, at)
	made, err := k.client.BatchV1().Jobs(c.Namespace).Create(ctx, j, metav1.CreateOptions{})
	switch {
	case err == nil:
		k.made.Wrote(cache.MetaObjectToName(c), made)
		k.events.Eventf(c, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	case apierrors.IsAlreadyExists(err):
		if made, err = k.client.BatchV1().Jobs(c.Namespace).Get(ctx, j.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read job %s/%s: %w", j.Namespace, j.Name, err)
		}
		if !metav1.IsControlledBy(made, c) {
			k.events.Eventf(c, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %s exists and is not of this cron job", j.Name)
			return nil
		}
	case controller.Ended(err):
		return nil
	default:
		k.events.Eventf(c, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("make job %s/%s: %w", j.Namespace, j.Name, err)
	}
	c.Status.LastScheduleTime = &metav1.Time{Time: at}
	if !over(made) && !activeHas(c, made) {
		c.Status.Active = append(c.Status.Active, reference(made))
	}
	return nil
}

func jobOf(c *batchv1.CronJob, at time.Time) *batchv1.Job {
	t := c.Spec.JobTemplate.DeepCopy()
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: fmt.Sprintf("%s-%d", c.Name, at.Unix()/60), Labels: t.Labels, Annotations: t.Annotations,
			CreationTimestamp: metav1.Time{}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(c, kind)},
		},
		Spec: t.Spec,
	}
	if j.Annotations == nil {
		j.Annotations = map[string]string{}
	}
	zone := time.UTC
	if z := c.Spec.TimeZone; z != nil {
		if l, err := time.LoadLocation(*z); err == nil {
			zone = l
		}
	}
	j.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	return j
}
