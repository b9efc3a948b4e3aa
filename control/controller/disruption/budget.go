package disruption

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// patience is how long a pod whose eviction was granted may take until it is deleted; then it was not.
	patience = 2 * time.Minute
)

// scale is how many pods somebody is to have, of those that a budget is about; unmanaged pods are nobody's.
type scale struct {
	expected  int32
	unmanaged []string
}

// wants says whether a budget is about a share of what there is to be, and not about a number.
func wants(b *policyv1.PodDisruptionBudget) bool {
	return b.Spec.MaxUnavailable != nil || b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.String
}

// need is how many pods are expected, and how many of them are to be healthy.
func need(b *policyv1.PodDisruptionBudget, pods int, s scale) (expected, healthy int32, err error) {
	switch {
	case b.Spec.MaxUnavailable != nil:
		n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MaxUnavailable, int(s.expected), true)
		if err != nil {
			return 0, 0, err
		}
		return s.expected, max(s.expected-int32(n), 0), nil
	case b.Spec.MinAvailable == nil:
		return int32(pods), 0, nil
	case b.Spec.MinAvailable.Type == intstr.Int:
		return int32(pods), b.Spec.MinAvailable.IntVal, nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(b.Spec.MinAvailable, int(s.expected), true)
	return s.expected, int32(n), err
}

// waiting are the pods whose eviction was granted and that are not deleted yet; overdue those that should have been.
// The time is when the next of them is.
func waiting(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, now time.Time) (left map[string]metav1.Time, overdue []*corev1.Pod, next time.Duration) {
	for _, p := range pods {
		at, is := b.Status.DisruptedPods[p.Name]
		if !is || p.DeletionTimestamp != nil {
			continue
		}
		due := at.Add(patience).Sub(now)
		if due <= 0 {
			overdue = append(overdue, p)
			continue
		}
		if left == nil {
			left = map[string]metav1.Time{}
		}
		left[p.Name] = at
		if next == 0 || due < next {
			next = due
		}
	}
	return left, overdue, next
}

// healthy counts the pods that are ready, and that nobody is about to delete.
func healthy(pods []*corev1.Pod, leaving map[string]metav1.Time) int32 {
	n := int32(0)
	for _, p := range pods {
		if _, is := leaving[p.Name]; !is && p.DeletionTimestamp == nil && ready(p) {
			n++
		}
	}
	return n
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// statusOf is what a budget says by these numbers.
func statusOf(b *policyv1.PodDisruptionBudget, expected, desired, current int32, leaving map[string]metav1.Time) policyv1.PodDisruptionBudgetStatus {
	allowed := max(current-desired, 0)
	if expected <= 0 {
		allowed = 0
	}
	s := b.Status.DeepCopy()
	s.ObservedGeneration, s.ExpectedPods, s.DesiredHealthy, s.CurrentHealthy = b.Generation, expected, desired, current
	s.DisruptionsAllowed, s.DisruptedPods = allowed, leaving
	c := metav1.Condition{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason, ObservedGeneration: b.Generation}
	if allowed > 0 {
		c.Status, c.Reason = metav1.ConditionTrue, policyv1.SufficientPodsReason
	}
	meta.SetStatusCondition(&s.Conditions, c)
	return *s
}

// failedStatus allows nothing: nobody knows how many pods there are to be.
func failedStatus(b *policyv1.PodDisruptionBudget, why error) policyv1.PodDisruptionBudgetStatus {
	s := b.Status.DeepCopy()
	s.DisruptionsAllowed, s.ObservedGeneration = 0, b.Generation
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: why.Error(),
		ObservedGeneration: b.Generation,
	})
	return *s
}
