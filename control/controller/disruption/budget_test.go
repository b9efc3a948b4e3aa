package disruption

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestNeed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		min, max          string
		pods              int
		scale             int32
		expected, healthy int32
	}{
		{min: "2", pods: 3, expected: 3, healthy: 2},
		{min: "50%", pods: 3, scale: 5, expected: 5, healthy: 3},
		{max: "1", pods: 3, scale: 5, expected: 5, healthy: 4},
		{max: "30%", pods: 3, scale: 5, expected: 5, healthy: 3},
		{max: "9", pods: 3, scale: 5, expected: 5, healthy: 0},
	} {
		b := &policyv1.PodDisruptionBudget{}
		if c.min != "" {
			v := intstr.Parse(c.min)
			b.Spec.MinAvailable = &v
		}
		if c.max != "" {
			v := intstr.Parse(c.max)
			b.Spec.MaxUnavailable = &v
		}
		expected, healthy, err := need(b, c.pods, scale{expected: c.scale})
		if err != nil || expected != c.expected || healthy != c.healthy {
			t.Errorf("%+v: %d, %d, %v", c, expected, healthy, err)
		}
	}
}

// TestLeaving has one pod whose eviction was just granted, one whose eviction never came, and one that goes.
func TestLeaving(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return p
	}
	goes := pod("goes")
	goes.DeletionTimestamp = &metav1.Time{Time: now}
	pods := []*corev1.Pod{pod("granted"), pod("stays"), goes, pod("other")}
	b := &policyv1.PodDisruptionBudget{}
	b.Status.DisruptedPods = map[string]metav1.Time{"granted": at(-time.Minute), "stays": at(-time.Hour), "goes": at(0), "unknown": at(0)}
	left, overdue, next := waiting(b, pods, now)
	if len(left) != 1 || len(overdue) != 1 || overdue[0].Name != "stays" || next != time.Minute {
		t.Errorf("they are %v, %v, %v", left, overdue, next)
	}
	if n := healthy(pods, left); n != 2 {
		t.Errorf("%d are healthy", n)
	}
	s := statusOf(b, 4, 1, 2, left)
	if s.DisruptionsAllowed != 1 || s.Conditions[0].Reason != policyv1.SufficientPodsReason {
		t.Errorf("the status is %+v", s)
	}
	if s := statusOf(b, 0, 0, 2, nil); s.DisruptionsAllowed != 0 || s.Conditions[0].Reason != policyv1.InsufficientPodsReason {
		t.Errorf("the status is %+v", s)
	}
}
