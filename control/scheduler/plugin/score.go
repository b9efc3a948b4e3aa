package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Normalize stretches scores, which are not negative, so that the highest gets the maximum; with reverse, the lowest
// does.
func Normalize(scores fwk.NodeScoreList, reverse bool) {
	top := int64(0)
	for i := range scores {
		top = max(top, scores[i].Score)
	}
	for i := range scores {
		s := int64(0)
		if top > 0 {
			s = fwk.MaxScore * scores[i].Score / top
		}
		if reverse {
			s = fwk.MaxScore - s
		}
		scores[i].Score = s
	}
}

// Ascending normalizes the scores of a plugin for which more is better.
type Ascending struct{}

// Descending normalizes the scores of a plugin for which less is better.
type Descending struct{}

// NormalizeScore gives the highest score the maximum.
func (Ascending) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	Normalize(scores, false)
	return nil
}

// NormalizeScore gives the lowest score the maximum.
func (Descending) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	Normalize(scores, true)
	return nil
}
