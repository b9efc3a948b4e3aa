// Package deployment rolls out Deployments: a ReplicaSet for each template, of which one grows as others shrink.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/controller/history"
	"github.com/berth-node/berth/control/controller/owned"
)

const workers = 5

var kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

type keeper struct {
	client      kubernetes.Interface
	deployments appslisters.DeploymentLister
	index       owned.Index[*appsv1.ReplicaSet]
	pods        owned.Pods
	events      record.EventRecorder
	own, sets   *owned.Writes
	prints      *history.Prints
	now         func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, apps appsinformers.Interface, pods coreinformers.PodInformer, log *slog.Logger) (controller.Controller, error) {
	sets, err := owned.NewIndex[*appsv1.ReplicaSet](apps.ReplicaSets().Informer())
	if err != nil {
		return nil, err
	}
	index, err := owned.NewIndex[*corev1.Pod](pods.Informer())
	if err != nil {
		return nil, err
	}
	adopting, err := owned.NewAdopting(apps.Deployments().Informer(), func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector })
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, "deployment-controller", func(events record.EventRecorder) (controller.Controller, error) {
		k := &keeper{
			client: client, deployments: apps.Deployments().Lister(), index: sets, pods: index, events: events, now: time.Now,
			own: owned.NewWrites(apps.Deployments().Informer().GetIndexer()), sets: owned.NewWrites(sets.Cache()),
			prints: history.NewPrints(),
		}
		return controller.NewLoop(log, workers, k.sync).
			Watch(apps.Deployments().Informer(), owned.Key).
			Watch(apps.ReplicaSets().Informer(), owned.Keys(kind, adopting)).
			Watch(pods.Informer(), k.ofPod), nil
	})
}

// ofPod is the deployment that waits for a pod to end: one that makes no new ones before.
func (k *keeper) ofPod(o any) []cache.ObjectName {
	p, ok := o.(*corev1.Pod)
	if !ok || p.DeletionTimestamp == nil && !owned.Finished(p) {
		return nil
	}
	c := metav1.GetControllerOfNoCopy(p)
	if c == nil {
		return nil
	}
	s, has, err := k.index.Cache().GetByKey(p.Namespace + "/" + c.Name)
	if err != nil || !has {
		return nil
	}
	var keys []cache.ObjectName
	for _, key := range owned.Keys(kind, nil)(s) {
		if d, err := k.deployments.Deployments(key.Namespace).Get(key.Name); err == nil && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			keys = append(keys, key)
		}
	}
	return keys
}

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	d, err := k.deployments.Deployments(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		k.own.Forget(key)
		k.sets.Forget(key)
		k.prints.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find deployment %s: %w", key, err)
	}
	if owned.Selector(d.Spec.Selector).Empty() {
		return 0, nil // one that selects all sets would adopt them
	}
	if k.own.Behind(key) || k.sets.Behind(key) {
		return owned.Late, nil
	}
	copied := *d
	r := &rollout{keeper: k, key: key, d: &copied, conditions: d.Status.Conditions, at: k.now()}
	all, err := r.claim(ctx)
	if err != nil {
		return 0, err
	}
	r.find(all)
	if d.DeletionTimestamp != nil {
		return 0, r.say(ctx, d, count(r.d, r.now, r.old, r.conditions, r.at))
	}
	r.conditions = pausing(d, r.conditions, r.at)
	steady, failed := r.act(ctx)
	if errors.Is(failed, history.ErrCollision) {
		// Another hash is tried; the number of those that were tried is what it is made of.
		return 0, errors.Join(r.say(ctx, d, r.counted()), failed)
	}
	if ctx.Err() != nil {
		return 0, failed
	}
	status := r.counted()
	var again time.Duration
	if !steady {
		failing(&status, r.now, r.old)
		again = judge(r.d, r.name(), &status, r.at)
	}
	if apierrors.HasStatusCause(failed, corev1.NamespaceTerminatingCause) {
		failed = nil
	}
	return again, errors.Join(r.say(ctx, d, status), failed)
}

// act does what is next. It says whether that is no part of a rollout: in one the conditions tell how it goes on.
func (r *rollout) act(ctx context.Context) (steady bool, err error) {
	if err := r.note(ctx); err != nil {
		return false, err
	}
	switch {
	case r.d.Spec.Paused:
		if err := r.apply(ctx, r.resized()); err != nil {
			return true, err
		}
		return true, r.forget(ctx)
	case r.scaling():
		return true, r.apply(ctx, r.resized())
	case r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		err = r.recreate(ctx)
	default:
		err = r.rolling(ctx)
	}
	if err != nil {
		return false, err
	}
	if s := r.counted(); complete(r.d, &s) {
		return false, r.forget(ctx)
	}
	return false, nil
}

func (r *rollout) counted() appsv1.DeploymentStatus {
	return count(r.d, r.now, r.old, r.conditions, r.at)
}

// name is what the conditions call what is rolled out.
func (r *rollout) name() string {
	if r.now != nil {
		return fmt.Sprintf("ReplicaSet %q", r.now.Name)
	}
	return fmt.Sprintf("Deployment %q", r.d.Name)
}

// claim are the sets of a deployment.
func (r *rollout) claim(ctx context.Context) ([]*appsv1.ReplicaSet, error) {
	return owned.Claim[*appsv1.ReplicaSet]{
		Owner: r.d, Kind: kind, Selector: owned.Selector(r.d.Spec.Selector),
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return r.keeper.client.AppsV1().Deployments(r.d.Namespace).Get(ctx, r.d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, s *appsv1.ReplicaSet, patch []byte) (*appsv1.ReplicaSet, error) {
			return r.keeper.client.AppsV1().ReplicaSets(s.Namespace).Patch(ctx, s.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		},
	}.Of(ctx, r.keeper.index.Of(r.d.UID), r.keeper.index.Orphans(r.d.Namespace, owned.Selector(r.d.Spec.Selector)))
}

// say writes the status and the revision of a deployment, where they are others than before.
func (r *rollout) say(ctx context.Context, before *appsv1.Deployment, status appsv1.DeploymentStatus) error {
	// In one order, what says the same is the same.
	slices.SortFunc(status.Conditions, func(a, b appsv1.DeploymentCondition) int {
		return slices.Index(order, a.Type) - slices.Index(order, b.Type)
	})
	if equality.Semantic.DeepEqual(before.Status, status) && before.Annotations[revisionKey] == r.d.Annotations[revisionKey] {
		return nil
	}
	changed := *r.d
	changed.Status = status
	written, err := r.keeper.client.AppsV1().Deployments(changed.Namespace).UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write status of deployment %s: %w", r.key, err)
	}
	r.keeper.own.Wrote(r.key, written)
	return nil
}

var order = []appsv1.DeploymentConditionType{appsv1.DeploymentAvailable, appsv1.DeploymentProgressing, appsv1.DeploymentReplicaFailure}
