// Package job runs pods to their end: as many as a job asks for to succeed, as often as it lets them fail. Each pod is
// counted once, whoever is killed when: it keeps a finalizer until the status says that it is about to be counted.
package job

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
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/owned"
)

const workers = 5

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

type keeper struct {
	client kubernetes.Interface
	jobs   batchlisters.JobLister
	index  cache.Indexer // of pods
	pods   owned.Pods
	keep   owned.Keeper
	own    *owned.Writes // of jobs themselves
	pace   owned.Pace
	now    func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, jobs batchinformers.JobInformer, pods coreinformers.PodInformer, log *slog.Logger) (controller.Controller, error) {
	index, err := owned.NewIndex[*corev1.Pod](pods.Informer())
	if err != nil {
		return nil, err
	}
	if err := controller.Index(pods.Informer(), byJob, jobOf); err != nil {
		return nil, err
	}
	adopting, err := owned.NewAdopting(jobs.Informer(), selectorOf)
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, "job-controller", func(events record.EventRecorder) (controller.Controller, error) {
		k := &keeper{
			client: client, jobs: jobs.Lister(), index: pods.Informer().GetIndexer(), pods: index, own: owned.NewWrites(jobs.Informer().GetIndexer()), now: time.Now,
			keep: owned.Keeper{Client: client, Events: events, Writes: owned.NewWrites(index.Cache())},
		}
		return controller.NewLoop(log, workers, k.sync).
			Watch(jobs.Informer(), owned.Key).
			Watch(pods.Informer(), owned.Keys(kind, adopting)), nil
	})
}

// selectorOf is by what a job selects pods that it adopts.
func selectorOf(j *batchv1.Job) *metav1.LabelSelector {
	if !ours(j) || ended(j) {
		return nil
	}
	return j.Spec.Selector
}

// ours says whether a job is for this controller.
func ours(j *batchv1.Job) bool {
	return j.Spec.ManagedBy == nil || *j.Spec.ManagedBy == batchv1.JobControllerName
}

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	j, err := k.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		k.keep.Writes.Forget(key)
		k.own.Forget(key)
		k.pace.Forget(key)
		return 0, k.left(ctx, key)
	}
	if err != nil {
		return 0, fmt.Errorf("find job %s: %w", key, err)
	}
	if !ours(j) {
		return 0, nil
	}
	if k.own.Behind(key) || k.keep.Writes.Behind(key) {
		return owned.Late, nil
	}
	if ended(j) {
		return 0, k.left(ctx, key)
	}
	// A thousand pods that end within a second are looked at ten times.
	if left := k.pace.Left(key, k.now()); left > 0 {
		return left, nil
	}
	pods, err := k.claim(ctx, j)
	if err != nil {
		return 0, err
	}
	plan := decide(j, pods, k.now())
	return plan.again, k.act(ctx, j, plan)
}

// claim are the pods of a job.
func (k *keeper) claim(ctx context.Context, j *batchv1.Job) ([]*corev1.Pod, error) {
	return owned.Claim[*corev1.Pod]{
		Owner: j, Kind: kind, Selector: owned.Selector(j.Spec.Selector), Patch: k.change,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return k.client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		},
	}.Of(ctx, k.pods.Of(j.UID), k.pods.Orphans(j.Namespace, owned.Selector(j.Spec.Selector)))
}

func (k *keeper) act(ctx context.Context, j *batchv1.Job, p plan) error {
	key := cache.MetaObjectToName(j)
	if !equality.Semantic.DeepEqual(j.Status, p.status) {
		changed := j.DeepCopy()
		changed.Status = p.status
		now, err := k.client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write status of job %s: %w", key, err)
		}
		k.own.Wrote(key, now)
	}
	for _, e := range p.events {
		k.keep.Events.Event(j, e.kind, e.reason, e.message)
	}
	failed := []error{
		each(p.release, func(pod *corev1.Pod) error { return k.untrack(ctx, key, pod, false) }),
		each(p.remove, func(pod *corev1.Pod) error {
			if err := k.untrack(ctx, key, pod, true); err != nil {
				return err
			}
			return k.keep.Delete(ctx, j, pod)
		}),
		each(p.end, func(pod *corev1.Pod) error { return k.keep.Delete(ctx, j, pod) }),
	}
	_, err := owned.Batches(len(p.create), func(i int) error {
		_, err := k.keep.Create(ctx, j, podOf(j, p.create[i]))
		return err
	})
	if !controller.Ended(err) {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
