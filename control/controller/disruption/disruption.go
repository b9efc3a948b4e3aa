// Package disruption says of each budget of disruptions how many of its pods may go, and takes back what pods say of
// disruptions that never came.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

const workers = 2

type keeper struct {
	client  kubernetes.Interface
	budgets policylisters.PodDisruptionBudgetLister
	pods    corelisters.PodLister
	index   cache.Indexer // of pods
	owners  owners
	events  record.EventRecorder
	now     func() time.Time
}

// Informers are those of what the controller looks at.
type Informers struct {
	Budgets policyinformers.PodDisruptionBudgetInformer
	Pods    coreinformers.PodInformer
	Apps    appsinformers.Interface
	// Controllers are replication controllers.
	Controllers coreinformers.ReplicationControllerInformer
}

// New makes the controller.
func New(client kubernetes.Interface, from Informers, log *slog.Logger) (controller.Controller, error) {
	if err := controller.IndexByLabel(from.Pods.Informer()); err != nil {
		return nil, err
	}
	selecting, err := controller.NewSelecting(from.Budgets.Informer(), selectorOf)
	if err != nil {
		return nil, err
	}
	return controller.WithEvents(client, "controllermanager", func(events record.EventRecorder) (controller.Controller, error) {
		k := &keeper{client, from.Budgets.Lister(), from.Pods.Lister(), from.Pods.Informer().GetIndexer(), owners{client, from.Apps, from.Controllers.Lister()}, events, time.Now}
		budgets := controller.NewLoop(log, workers, k.sync).
			Watch(from.Budgets.Informer(), func(o any) []cache.ObjectName {
				if b, ok := o.(*policyv1.PodDisruptionBudget); ok {
					return []cache.ObjectName{cache.MetaObjectToName(b)}
				}
				return nil
			}).
			Watch(from.Apps.ReplicaSets().Informer(), nothing).
			Watch(from.Apps.StatefulSets().Informer(), nothing).
			Watch(from.Apps.Deployments().Informer(), nothing).
			Watch(from.Controllers.Informer(), nothing).
			Watch(from.Pods.Informer(), func(o any) []cache.ObjectName { return of(selecting, o) })
		pods := controller.NewLoop(log, 1, k.forget).Watch(from.Pods.Informer(), func(o any) []cache.ObjectName {
			if p, ok := o.(*corev1.Pod); ok && stale(p) != nil {
				return []cache.ObjectName{cache.MetaObjectToName(p)}
			}
			return nil
		})
		return both{budgets, pods}, nil
	})
}

// nothing has a kind be waited for: its cache is read.
func nothing(any) []cache.ObjectName { return nil }

type both [2]controller.Controller

// Run implements [controller.Controller].
func (b both) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() { b[0].Run(ctx); close(done) }()
	b[1].Run(ctx)
	<-done
}

// selectorOf is by what a budget selects its pods.
func selectorOf(b *policyv1.PodDisruptionBudget) *metav1.LabelSelector { return b.Spec.Selector }

// of are the budgets of a pod.
func of(budgets controller.Selecting[*policyv1.PodDisruptionBudget], o any) []cache.ObjectName {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	var keys []cache.ObjectName
	for b := range budgets.All(p.Namespace, p.Labels) {
		keys = append(keys, cache.MetaObjectToName(b))
	}
	return keys
}

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	b, err := k.budgets.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find budget %s: %w", key, err)
	}
	status, again, err := k.status(ctx, b)
	if err != nil {
		k.events.Eventf(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
		if saved := k.write(ctx, b, failedStatus(b, err)); saved != nil || errors.Is(err, errOwner) {
			return time.Minute, saved // trying again at once would not change it
		}
		return 0, fmt.Errorf("look at budget %s: %w", key, err)
	}
	return again, k.write(ctx, b, status)
}

func (k *keeper) status(ctx context.Context, b *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return b.Status, 0, err
	}
	pods := controller.PodsSelected(k.index, b.Namespace, s)
	if len(pods) == 0 {
		k.events.Event(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	var want scale
	if wants(b) {
		if want, err = k.owners.of(ctx, pods); err != nil {
			return b.Status, 0, err
		}
		if len(want.unmanaged) > 0 {
			k.events.Eventf(b, corev1.EventTypeWarning, "UnmanagedPods",
				"Pods selected by this PodDisruptionBudget (selector: %v) were found to be unmanaged: %s", s, someOf(want.unmanaged))
		}
	}
	expected, desired, err := need(b, len(pods), want)
	if err != nil {
		return b.Status, 0, err
	}
	leaving, overdue, again := waiting(b, pods, k.now())
	for _, p := range overdue {
		k.events.Eventf(p, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", b.Namespace, b.Name)
	}
	return statusOf(b, expected, desired, healthy(pods, leaving), leaving), again, nil
}

// write writes to the version that was looked at: an eviction that was granted meanwhile would be forgotten.
func (k *keeper) write(ctx context.Context, b *policyv1.PodDisruptionBudget, s policyv1.PodDisruptionBudgetStatus) error {
	if equality.Semantic.DeepEqual(b.Status, s) {
		return nil
	}
	changed := b.DeepCopy()
	changed.Status = s
	_, err := k.client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of budget %s/%s: %w", b.Namespace, b.Name, err)
	}
	return nil
}

// stale is what a pod says of a disruption, which may never come.
func stale(p *corev1.Pod) *corev1.PodCondition {
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	for i, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// forget has a pod take back what it said of a disruption, when it was not deleted.
func (k *keeper) forget(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	p, err := k.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find pod %s: %w", key, err)
	}
	c := stale(p)
	if c == nil {
		return 0, nil
	}
	if left := c.LastTransitionTime.Add(patience).Sub(k.now()); left > 0 {
		return left, nil
	}
	changed := p.DeepCopy()
	c = stale(changed)
	c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(k.now())
	_, err = k.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("write status of pod %s: %w", key, err)
	}
	return 0, nil
}
