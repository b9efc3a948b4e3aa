package devicetainteviction

import (
	"context"
	"fmt"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-node/berth/control/devices"
)

// again is how often the status of a rule is brought up to date while it ends pods.
const again = 10 * time.Second

// syncRule writes to a rule's status how its eviction comes on; of one that has no effect, what it would end.
func (e *evicter) syncRule(ctx context.Context, name string) (time.Duration, error) {
	r, err := e.rules.Get(name)
	if apierrors.IsNotFound(err) {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.evicted, name)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find rule %s: %w", name, err)
	}
	pending, namespaces, err := e.pending(r)
	if err != nil {
		return 0, err
	}
	e.mu.Lock()
	evicted := e.evicted[name]
	e.mu.Unlock()
	o := r.DeepCopy()
	if meta.SetStatusCondition(&o.Status.Conditions, condition(r, pending, namespaces, evicted)) {
		_, err := e.client.ResourceV1().DeviceTaintRules().UpdateStatus(ctx, o, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("write status of rule %s: %w", name, err)
		}
	}
	if r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute && pending > 0 {
		return again, nil // as pods end one by one
	}
	return 0, nil
}

// condition is what a rule says of its eviction.
func condition(r *resourcev1.DeviceTaintRule, pending, namespaces, evicted int) metav1.Condition {
	c := metav1.Condition{
		Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: r.Generation,
	}
	switch {
	case r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNone:
		c.Reason = "NoEffect"
		c.Message = fmt.Sprintf("%d pods would be evicted in %d namespaces if the effect was NoExecute.", pending, namespaces)
	case r.Spec.Taint.Effect != resourcev1.DeviceTaintEffectNoExecute:
		c.Reason, c.Message = "NotExecuted", "The effect does not evict pods."
	case pending > 0:
		c.Status, c.Reason = metav1.ConditionTrue, "PodsPendingEviction"
		c.Message = fmt.Sprintf("%d pods need to be evicted in %d namespaces. %d pods evicted since starting the controller.", pending, namespaces, evicted)
	default:
		c.Reason, c.Message = "Completed", fmt.Sprintf("%d pods evicted since starting the controller.", evicted)
	}
	return c
}

// pending are how many pods a rule ends, or would if its effect was that, and in how many namespaces.
func (e *evicter) pending(r *resourcev1.DeviceTaintRule) (pods, namespaces int, err error) {
	as := r.DeepCopy()
	as.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	all, err := e.claims.List(labels.Everything())
	if err != nil {
		return 0, 0, fmt.Errorf("list claims: %w", err)
	}
	seen, in := map[key]bool{}, map[string]bool{}
	for _, c := range all {
		if !e.ends(c, as) {
			continue
		}
		for _, k := range usersOf(c) {
			p, err := e.pods.Pods(k.name.Namespace).Get(k.name.Name)
			if err == nil && goes(p) && !seen[k] {
				seen[k], in[k.name.Namespace] = true, true
			}
		}
	}
	return len(seen), len(in), nil
}

// ends says whether a rule ends the users of a claim, now or later.
func (e *evicter) ends(c *resourcev1.ResourceClaim, r *resourcev1.DeviceTaintRule) bool {
	return has(c, func(d *resourcev1.DeviceRequestAllocationResult) bool {
		if !devices.Selects(r, d.Driver, d.Pool, d.Device) {
			return false
		}
		_, by := deadline([]taint{{DeviceTaint: devices.Taint(r), tolerations: d.Tolerations}}, e.now())
		return by != nil
	})
}
