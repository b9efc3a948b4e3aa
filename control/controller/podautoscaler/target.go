package podautoscaler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const (
	scaleTimeout = 10 * time.Second
	// putTries is how often a scale is written that somebody else has written meanwhile.
	putTries = 5
)

// targets are what is scaled: anything that has a scale, of whatever group.
type targets struct {
	client rest.Interface
	mapper meta.ResettableRESTMapper
}

// target is the scale of one.
type target struct {
	path  []string
	scale autoscalingv1.Scale
}

// get finds the scale of a reference, in any version of its group that has one.
func (t *targets) get(ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference) (*target, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("invalid API version in scale target reference: %w", err)
	}
	kind := schema.GroupKind{Group: gv.Group, Kind: ref.Kind}
	mapping, err := t.mapper.RESTMapping(kind, gv.Version)
	if meta.IsNoMatchError(err) {
		mapping, err = t.mapper.RESTMapping(kind)
	}
	if meta.IsNoMatchError(err) {
		t.mapper.Reset() // a kind may have come since
		mapping, err = t.mapper.RESTMapping(kind)
	}
	if err != nil {
		return nil, err
	}
	path := []string{"apis", mapping.Resource.Group, mapping.Resource.Version}
	if mapping.Resource.Group == "" {
		path = []string{"api", mapping.Resource.Version}
	}
	found := &target{path: append(path, "namespaces", namespace, mapping.Resource.Resource, ref.Name, "scale")}
	return found, t.read(ctx, found)
}

func (t *targets) read(ctx context.Context, of *target) error {
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	body, err := t.client.Get().AbsPath(of.path...).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err == nil {
		of.scale = autoscalingv1.Scale{}
		err = json.Unmarshal(body, &of.scale)
	}
	return err
}

// put writes how many replicas there are to be.
func (t *targets) put(ctx context.Context, of *target, replicas int32) error {
	scale := *of
	for i := 0; ; i++ {
		scale.scale.Spec.Replicas = replicas
		body, err := json.Marshal(&scale.scale)
		if err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, scaleTimeout)
		_, err = t.client.Put().AbsPath(scale.path...).SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").
			Body(body).DoRaw(within)
		cancel()
		if !apierrors.IsConflict(err) || i == putTries {
			return err
		}
		if err := t.read(ctx, &scale); err != nil {
			return err
		}
	}
}

// scaled are the pods of a target. Where two autoscalers would scale the same pods neither does.
func (a *autoscaler) scaled(h *autoscalingv2.HorizontalPodAutoscaler, t *target) (scaled, error) {
	of := scaled{
		namespace: h.Namespace, current: t.scale.Spec.Replicas, running: t.scale.Status.Replicas, tolerance: tolerance{off, off},
	}
	fail := func(reason, message string) (scaled, error) {
		a.events.Event(h, corev1.EventTypeWarning, reason, message)
		set(h, a.now(), autoscalingv2.ScalingActive, false, reason, "the HPA target's scale is "+message)
		return of, fmt.Errorf("scale of target is %s", message)
	}
	if t.scale.Status.Selector == "" {
		return fail("InvalidSelector", "missing a selector")
	}
	var err error
	if of.selector, err = labels.Parse(t.scale.Status.Selector); err != nil {
		return fail("InvalidSelector", fmt.Sprintf("of a selector that cannot be read: %v", err))
	}
	of.pods = controller.PodsSelected(a.pods, h.Namespace, of.selector)
	if other := a.alsoScaled(cache.MetaObjectToName(h), of); other != "" {
		message := fmt.Sprintf("pods by selector %s are controlled by multiple HPAs: %s and %s/%s", of.selector, other, h.Namespace, h.Name)
		a.events.Event(h, corev1.EventTypeWarning, "AmbiguousSelector", message)
		set(h, a.now(), autoscalingv2.ScalingActive, false, "AmbiguousSelector", message)
		return of, fmt.Errorf("select pods: %s", message)
	}
	if b := h.Spec.Behavior; b != nil {
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			of.tolerance.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			of.tolerance.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
	}
	return of, nil
}

// alsoScaled is another autoscaler that any of the pods belong to.
func (a *autoscaler) alsoScaled(key cache.ObjectName, of scaled) string {
	for other, s := range a.besides(key, of.selector) {
		for _, p := range of.pods {
			if s.Matches(labels.Set(p.Labels)) {
				return key.Namespace + "/" + other
			}
		}
	}
	return ""
}

// besides are what other autoscalers of a namespace select. Theirs and the pods are compared when nobody else waits.
func (a *autoscaler) besides(key cache.ObjectName, own labels.Selector) map[string]labels.Selector {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.selectors[key.Namespace]
	if all == nil {
		all = map[string]labels.Selector{}
		a.selectors[key.Namespace] = all
	}
	all[key.Name] = own
	others := maps.Clone(all)
	delete(others, key.Name)
	return others
}

// set says of an autoscaler how it is.
func set(h *autoscalingv2.HorizontalPodAutoscaler, now time.Time, kind autoscalingv2.HorizontalPodAutoscalerConditionType, is bool, reason, message string) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	for i := range h.Status.Conditions {
		if c := &h.Status.Conditions[i]; c.Type == kind {
			if c.Status != status {
				c.LastTransitionTime = metav1.NewTime(now)
			}
			c.Status, c.Reason, c.Message = status, reason, message
			return
		}
	}
	h.Status.Conditions = append(h.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(now),
	})
}
