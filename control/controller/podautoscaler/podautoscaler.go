// Package podautoscaler changes how many pods something has by what they use, or by what else is measured.
package podautoscaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	autoscalinginformers "k8s.io/client-go/informers/autoscaling/v2"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-node/berth/control/controller"
)

const (
	workers = 5
	// every is how often what is measured is looked at: nobody tells of it.
	every = 15 * time.Second
	// off is by how much of the target a metric may be off, unless the object says otherwise.
	off = 0.1
)

// Deps are what the controller is made of.
type Deps struct {
	Client kubernetes.Interface
	Mapper meta.ResettableRESTMapper
	Pods   coreinformers.PodInformer
	Scaler autoscalinginformers.HorizontalPodAutoscalerInformer
	Events record.EventRecorder
	Log    *slog.Logger
}

type autoscaler struct {
	client  kubernetes.Interface
	scalers autoscalinglisters.HorizontalPodAutoscalerLister
	pods    cache.Indexer
	sources *sources
	targets *targets
	events  record.EventRecorder
	log     *slog.Logger
	now     func() time.Time

	mu        sync.Mutex
	memories  map[cache.ObjectName]*memory
	selectors map[string]map[string]labels.Selector // by namespace and name
}

// New makes the controller.
func New(d Deps) (controller.Controller, error) {
	if err := controller.IndexByLabel(d.Pods.Informer()); err != nil {
		return nil, err
	}
	raw := d.Client.Discovery().RESTClient()
	a := &autoscaler{
		client: d.Client, scalers: d.Scaler.Lister(), pods: d.Pods.Informer().GetIndexer(), sources: &sources{raw, d.Mapper}, targets: &targets{raw, d.Mapper},
		events: d.Events, log: d.Log, now: time.Now, memories: map[cache.ObjectName]*memory{}, selectors: map[string]map[string]labels.Selector{},
	}
	return controller.NewLoop(d.Log, workers, a.sync).
		Watch(d.Pods.Informer(), func(any) []cache.ObjectName { return nil }).
		WatchChanges(d.Scaler.Informer(), ofScaler), nil
}

// ofScaler is an autoscaler of which something else is wanted. What becomes of it its status tells, and nobody needs to
// look for that.
func ofScaler(before, after any) []cache.ObjectName {
	was, _ := before.(*autoscalingv2.HorizontalPodAutoscaler)
	is, _ := after.(*autoscalingv2.HorizontalPodAutoscaler)
	switch {
	case is != nil && was != nil && equality.Semantic.DeepEqual(was.Spec, is.Spec):
		return nil
	case is != nil:
		return []cache.ObjectName{cache.MetaObjectToName(is)}
	case was != nil:
		return []cache.ObjectName{cache.MetaObjectToName(was)}
	}
	return nil
}

func (a *autoscaler) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	h, err := a.scalers.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		a.mu.Lock()
		delete(a.memories, key)
		if delete(a.selectors[key.Namespace], key.Name); len(a.selectors[key.Namespace]) == 0 {
			delete(a.selectors, key.Namespace)
		}
		a.mu.Unlock()
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find autoscaler %s: %w", key, err)
	}
	next := h.DeepCopy()
	// What fails is in the status and in events; it is tried again as soon as anything else is.
	if err := a.scale(ctx, next, a.memoryOf(key)); err != nil {
		a.log.Debug("autoscaler does not scale", "autoscaler", key, "error", err)
	}
	next.Status.ObservedGeneration = &next.Generation
	if equality.Semantic.DeepEqual(h.Status, next.Status) {
		return every, nil
	}
	_, err = a.client.AutoscalingV2().HorizontalPodAutoscalers(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		a.events.Event(h, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		return 0, fmt.Errorf("write status of autoscaler %s: %w", key, err)
	}
	return every, nil
}

func (a *autoscaler) memoryOf(key cache.ObjectName) *memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.memories[key]
	if m == nil {
		m = &memory{}
		a.memories[key] = m
	}
	m.forget(a.now())
	return m
}

// scale brings the target of an autoscaler to as many replicas as it should have, and its status up to that.
func (a *autoscaler) scale(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler, m *memory) error {
	t, err := a.targets.get(ctx, h.Namespace, h.Spec.ScaleTargetRef)
	if err != nil {
		a.events.Event(h, corev1.EventTypeWarning, "FailedGetScale", err.Error())
		set(h, a.now(), autoscalingv2.AbleToScale, false, "FailedGetScale", fmt.Sprintf("the HPA controller was unable to get the target's current scale: %v", err))
		return err
	}
	set(h, a.now(), autoscalingv2.AbleToScale, true, "SucceededGetScale", "the HPA controller was able to get the target's current scale")
	current := t.scale.Spec.Replicas
	if len(m.recommended) == 0 {
		m.recommend(a.now(), current)
	}
	h.Status.CurrentReplicas = current
	least := int32(1)
	if h.Spec.MinReplicas != nil {
		least = *h.Spec.MinReplicas
	}
	var desired int32
	var why string
	switch {
	case current == 0 && least != 0:
		set(h, a.now(), autoscalingv2.ScalingActive, false, "ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
		h.Status.DesiredReplicas, h.Status.CurrentMetrics = 0, nil
		return nil
	case current > h.Spec.MaxReplicas:
		desired, why = h.Spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas"
	case current < least:
		desired, why = least, "Current number of replicas below Spec.MinReplicas"
	default:
		if desired, why, err = a.measure(ctx, h, t, m, least); err != nil {
			return err
		}
	}
	h.Status.DesiredReplicas = desired
	if desired == current {
		return nil
	}
	return a.resize(ctx, h, t, m, desired, why)
}

// resize changes the number of replicas.
func (a *autoscaler) resize(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler, t *target, m *memory, desired int32, why string) error {
	current := t.scale.Spec.Replicas
	if err := a.targets.put(ctx, t, desired); err != nil {
		a.events.Eventf(h, corev1.EventTypeWarning, "FailedRescale", "New size: %d; reason: %s; error: %v", desired, why, err)
		set(h, a.now(), autoscalingv2.AbleToScale, false, "FailedUpdateScale", fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		h.Status.DesiredReplicas = current
		return err
	}
	set(h, a.now(), autoscalingv2.AbleToScale, true, "SucceededRescale", fmt.Sprintf("the HPA controller was able to update the target scale to %d", desired))
	a.events.Eventf(h, corev1.EventTypeNormal, "SuccessfulRescale", "New size: %d; reason: %s", desired, why)
	a.log.Info("target is scaled", "autoscaler", cache.MetaObjectToName(h), "from", current, "to", desired, "reason", why)
	m.changed(a.now(), current, desired)
	now := metav1.NewTime(a.now())
	h.Status.LastScaleTime = &now
	return nil
}

// measure is how many replicas the metrics ask for, as far as it may be, and why.
func (a *autoscaler) measure(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler, t *target, m *memory, least int32) (int32, string, error) {
	current := t.scale.Spec.Replicas
	of, err := a.scaled(h, t)
	if err != nil {
		return 0, "", err
	}
	want, name, err := a.compute(ctx, h, of)
	if err != nil {
		a.events.Event(h, corev1.EventTypeWarning, "FailedComputeMetricsReplicas", err.Error())
		return 0, "", err
	}
	v := m.decide(a.now(), current, want, bounds{least, h.Spec.MaxReplicas, h.Spec.Behavior})
	set(h, a.now(), autoscalingv2.AbleToScale, true, v.stableReason, v.stableMsg)
	set(h, a.now(), autoscalingv2.ScalingLimited, v.limited, v.limitReason, v.limitMsg)
	why := "All metrics below target"
	if v.replicas > current {
		why = name + " above target"
	}
	return v.replicas, why, nil
}

// compute is the most that any metric asks for. Where one is not known, no fewer are asked for than there are.
func (a *autoscaler) compute(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler, of scaled) (int32, string, error) {
	var first error
	want, name, invalid := int32(-1), "", 0
	var statuses []autoscalingv2.MetricStatus
	for _, spec := range h.Spec.Metrics {
		p, err := a.propose(ctx, of, spec)
		if err != nil {
			if invalid++; first == nil {
				first = err
			}
			// Each is told of by its own reason.
			if f, ok := errors.AsType[failure](err); ok {
				a.events.Event(h, corev1.EventTypeWarning, f.reason, err.Error())
			}
			continue
		}
		statuses = append(statuses, p.status)
		if p.replicas > want {
			want, name = p.replicas, p.name
		}
	}
	h.Status.CurrentMetrics = statuses
	if want < 0 || invalid > 0 && want < of.current {
		reason := "InvalidMetricSourceType"
		if f, ok := errors.AsType[failure](first); ok {
			reason = f.reason
		}
		set(h, a.now(), autoscalingv2.ScalingActive, false, reason, fmt.Sprintf("the HPA was unable to compute the replica count: %v", first))
		return 0, "", fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", invalid, len(h.Spec.Metrics), first)
	}
	set(h, a.now(), autoscalingv2.ScalingActive, true, "ValidMetricFound", "the HPA was able to successfully calculate a replica count from "+name)
	return want, name, nil
}
