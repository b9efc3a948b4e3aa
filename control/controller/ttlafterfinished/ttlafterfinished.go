// Package ttlafterfinished removes jobs some time after they have ended, where they ask for it.
package ttlafterfinished

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const workers = 2

type cleaner struct {
	client kubernetes.Interface
	jobs   batchlisters.JobLister
	now    func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, jobs batchinformers.JobInformer, log *slog.Logger) controller.Controller {
	c := &cleaner{client, jobs.Lister(), time.Now}
	return controller.NewLoop(log, workers, c.sync).Watch(jobs.Informer(), func(o any) []cache.ObjectName {
		if j, ok := o.(*batchv1.Job); ok {
			if _, is := due(j); is {
				return []cache.ObjectName{cache.MetaObjectToName(j)}
			}
		}
		return nil
	})
}

// due is when a job is to be removed, if it is.
func due(j *batchv1.Job) (time.Time, bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

func (c *cleaner) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find job %s: %w", key, err)
	}
	at, is := due(j)
	if !is {
		return 0, nil
	}
	if left := at.Sub(c.now()); left > 0 {
		return left, nil
	}
	// The time may have been changed, and the cache be late.
	j, err = c.client.BatchV1().Jobs(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read job %s: %w", key, err)
	}
	if at, is = due(j); !is {
		return 0, nil
	}
	if left := at.Sub(c.now()); left > 0 {
		return left, nil
	}
	policy := metav1.DeletePropagationForeground
	err = c.client.BatchV1().Jobs(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &j.UID, ResourceVersion: &j.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("remove job %s: %w", key, err)
	}
	return 0, nil
}
