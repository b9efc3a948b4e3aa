package profile

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// barredTotal is that of a node that is barred: less than any other.
const barredTotal = -1

// RefreshFar is Refresh for a pod for which some plugins look far: these look at all nodes again, by what they have
// found out for this pod before any node. What they reject is barred: it stays in the ranking, as the next pod may suit
// it. It returns how many are not; 0, too, where other plugins score this pod than did the first. A ranking that was
// refreshed so once is never refreshed in the other way.
func (r *Ranking) RefreshFar(
	ctx context.Context, far *Farsight, state fwk.CycleState, pod *corev1.Pod, again []fwk.NodeInfo, unsuitable []string,
) (left int, ended *fwk.Status) {
	defer took(r.profile, "Score", time.Now(), &ended)
	r.removeAll(unsuitable)
	if _, status := r.rescoreAll(ctx, far, again); !status.IsSuccess() {
		return 0, status
	}
	open, status := r.bar(ctx, far, state, pod)
	if len(open) == 0 || !status.IsSuccess() {
		return 0, status
	}
	skip, status := far.preScore(ctx, state, pod, open)
	if !status.IsSuccess() || !r.scoredBy(far, skip) {
		return 0, status
	}
	for i := range r.scores {
		s := &r.scores[i]
		from, of := r.state, r.pod
		if far.has(s.plugin) {
			from, of = state, pod
			if status := r.lookAgain(ctx, s, from, of); !status.IsSuccess() {
				return 0, status
			}
		}
		if status := r.compare(ctx, s, from, of); !status.IsSuccess() {
			return 0, status
		}
	}
	r.sum()
	return len(open), nil
}

// bar finds out which nodes those that look far reject, and returns the others.
func (r *Ranking) bar(ctx context.Context, far *Farsight, state fwk.CycleState, pod *corev1.Pod) (open []fwk.NodeInfo, ended *fwk.Status) {
	open = make([]fwk.NodeInfo, 0, len(r.nodes))
	r.barred = slices.Grow(r.barred[:0], len(r.nodes))[:len(r.nodes)]
	clear(r.barred)
	for _, plugin := range r.profile.points.filter {
		if !far.has(plugin) || state.GetSkipFilterPlugins().Has(plugin.Name()) {
			continue
		}
		for i, info := range r.nodes {
			if r.barred[i] {
				continue
			}
			if err := ctx.Err(); err != nil { // terms may be many
				return nil, fwk.AsStatus(fmt.Errorf("look at nodes again: %w", err))
			}
			status := plugin.Filter(ctx, state, pod, info)
			if !status.IsSuccess() && !status.IsRejected() {
				return nil, failed("Filter", plugin, status)
			}
			r.barred[i] = !status.IsSuccess()
		}
	}
	for i, info := range r.nodes {
		if !r.barred[i] {
			open = append(open, info)
		}
	}
	return open, nil
}

// scoredBy says whether those that look far and score this pod are those that did so for the first.
func (r *Ranking) scoredBy(far *Farsight, skip sets.Set[string]) bool {
	for _, plugin := range r.profile.points.score {
		name := plugin.Name()
		scores := slices.ContainsFunc(r.scores, func(s scoring) bool { return s.plugin.Name() == name })
		if far.has(plugin) && scores == skip.Has(name) {
			return false
		}
	}
	return true
}

// lookAgain asks a plugin about all nodes that are not barred.
func (r *Ranking) lookAgain(ctx context.Context, s *scoring, state fwk.CycleState, pod *corev1.Pod) *fwk.Status {
	for i, info := range r.nodes {
		if r.barred[i] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fwk.AsStatus(fmt.Errorf("score nodes again: %w", err))
		}
		value, status := s.plugin.Score(ctx, state, pod, info)
		if !status.IsSuccess() {
			return failed("Score", s.plugin, status)
		}
		if s.raw != nil {
			s.raw[i] = value
		} else if s.scores[i].Score, status = s.weighed(s.scores[i].Name, value); !status.IsSuccess() {
			return status
		}
	}
	return nil
}

// compare has a plugin compare the nodes that are not barred by what it has said of each.
func (r *Ranking) compare(ctx context.Context, s *scoring, state fwk.CycleState, pod *corev1.Pod) *fwk.Status {
	if s.raw == nil {
		return nil
	}
	r.room = r.room[:0]
	for i := range s.raw {
		if !r.Barred(i) {
			r.room = append(r.room, fwk.NodeScore{Name: s.scores[i].Name, Score: s.raw[i]})
		}
	}
	open := scoring{plugin: s.plugin, weight: s.weight, scores: r.room}
	if status := open.normalize(ctx, state, pod); !status.IsSuccess() {
		return status
	}
	n := 0
	for i := range s.scores {
		if !r.Barred(i) {
			s.scores[i].Score = open.scores[n].Score
			n++
		}
	}
	return nil
}

// Barred says of a ranked node that it does not suit the last pod, but may suit the next.
func (r *Ranking) Barred(at int) bool { return len(r.barred) > 0 && r.barred[at] }
