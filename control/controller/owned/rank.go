package owned

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rank sorts pods by which is ended first where there are too many. related are all pods of the same kind, by which is
// told how many of them are on a node: where there are more of them, one is missed less.
func Rank(pods, related []*corev1.Pod, now time.Time) {
	on := map[string]int{}
	for _, p := range related {
		if Active(p) && p.Spec.NodeName != "" {
			on[p.Spec.NodeName]++
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return before(a, b, on, now) })
}

func before(a, b *corev1.Pod, on map[string]int, now time.Time) int {
	readyA, readyB := readyCondition(a), readyCondition(b)
	if c := cmp.Or(
		first(a.Spec.NodeName == "", b.Spec.NodeName == ""),
		cmp.Compare(phase(a), phase(b)),
		first(readyA == nil, readyB == nil),
		cmp.Compare(cost(a), cost(b)),
		cmp.Compare(on[b.Spec.NodeName], on[a.Spec.NodeName]),
	); c != 0 {
		return c
	}
	if readyA != nil && readyB != nil {
		if c := younger(readyA.LastTransitionTime, readyB.LastTransitionTime, now); c != 0 {
			return c
		}
	}
	return cmp.Or(
		cmp.Compare(restarts(b), restarts(a)),
		younger(a.CreationTimestamp, b.CreationTimestamp, now),
		cmp.Compare(a.UID, b.UID),
	)
}

// first has what is so come before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func phase(p *corev1.Pod) int {
	switch p.Status.Phase {
	case corev1.PodPending, "":
		return 0
	case corev1.PodUnknown:
		return 1
	}
	return 2
}

// cost is what people say that the end of a pod costs. What is no number counts for nothing, as with Kubernetes.
func cost(p *corev1.Pod) int32 {
	text, has := p.Annotations[corev1.PodDeletionCost]
	if !has || text == "" || text[0] == '+' || len(text) > 1 && text[0] == '0' {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// younger has the younger one come first. Times are told apart by the power of two of their age only, so that among
// those of about one age it is chance, and not one rollout after the other, that decides.
func younger(a, b metav1.Time, now time.Time) int {
	if a.IsZero() || b.IsZero() {
		return first(a.IsZero(), b.IsZero())
	}
	return cmp.Compare(power(now.Sub(a.Time)), power(now.Sub(b.Time)))
}

func power(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return int(math.Log2(float64(age)))
}

func restarts(p *corev1.Pod) int32 {
	var most int32
	for _, c := range p.Status.ContainerStatuses {
		most = max(most, c.RestartCount)
	}
	return most
}
