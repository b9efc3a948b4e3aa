package job

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/control/controller/owned"
)

const (
	// burst is how many pods are made before others have their turn.
	burst = 500
	// firstBackoff and lastBackoff are how long a job waits after a pod failed, at first and at most.
	firstBackoff = 10 * time.Second
	lastBackoff  = 10 * time.Minute
)

// manage has as many pods be active as the job asks for.
func (s *state) manage() {
	if suspended(s.job) {
		s.plan.remove = s.active
		return
	}
	keep, surplus := s.split()
	want := s.want(len(keep))
	if n := len(keep) - want; n > 0 {
		s.rank(keep)
		surplus = append(surplus, keep[:n]...)
		keep = keep[n:]
	}
	s.plan.remove = surplus
	n := want - len(keep)
	if s.waits() {
		n -= len(s.terminating)
	}
	if n = min(n, burst); n <= 0 {
		return
	}
	if !s.perIndex() {
		if left := s.backoff(); left > 0 {
			s.wake(left)
			return
		}
	}
	s.create(n, keep)
}

func (s *state) wake(in time.Duration) {
	if s.plan.again == 0 || in < s.plan.again {
		s.plan.again = in
	}
}

// want is how many pods are to be active.
func (s *state) want(active int) int {
	parallelism := 1
	if p := s.job.Spec.Parallelism; p != nil {
		parallelism = int(*p)
	}
	if s.job.Spec.Completions == nil {
		// As soon as one has succeeded the others only come to their end.
		if s.succeeded > 0 {
			return min(active, parallelism)
		}
		return parallelism
	}
	return min(max(completions(s.job)-s.succeeded-s.lost.count(), 0), parallelism)
}

// split parts the active pods into those that are of use, and those that are not: of no index, of one that another pod
// has or that needs none any more, or let go before without having ended.
func (s *state) split() (keep, surplus []*corev1.Pod) {
	seen := map[int]bool{}
	for _, p := range s.active {
		i := indexOf(p)
		switch {
		case !tracked(p):
			surplus = append(surplus, p)
		case !indexed(s.job):
			keep = append(keep, p)
		case i < 0 || i >= completions(s.job) || seen[i] || s.done.has(i) || s.lost.has(i):
			surplus = append(surplus, p)
		default:
			seen[i] = true
			keep = append(keep, p)
		}
	}
	return keep, surplus
}

// rank has those come first that cost least: without a node, not started, not ready, of the highest index, the newest.
func (s *state) rank(pods []*corev1.Pod) {
	cost := func(p *corev1.Pod) int {
		switch {
		case p.Spec.NodeName == "":
			return 0
		case p.Status.Phase != corev1.PodRunning:
			return 1
		case !owned.Ready(p):
			return 2
		}
		return 3
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cost(a)-cost(b), indexOf(b)-indexOf(a), b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

func (s *state) create(n int, keep []*corev1.Pod) {
	if !indexed(s.job) {
		for range n {
			s.plan.create = append(s.plan.create, slot{index: -1})
		}
		return
	}
	taken := map[int]bool{}
	for _, p := range keep {
		taken[indexOf(p)] = true
	}
	if s.waits() {
		for _, p := range s.terminating {
			taken[indexOf(p)] = true
		}
	}
	last := s.lastFailed()
	for i := 0; i < completions(s.job) && len(s.plan.create) < n; i++ {
		// What is done may be a thousand million indexes in a row.
		if next := max(s.done.beyond(i), s.lost.beyond(i)); next > i {
			i = next - 1
			continue
		}
		if taken[i] {
			continue
		}
		if p := last[i]; p != nil {
			_, failures := failuresOf(p)
			if left := waitFor(failures+1, endOf(p), s.now); left > 0 {
				s.wake(left)
				continue
			}
		}
		s.plan.create = append(s.plan.create, slot{i, last[i]})
	}
}

// backoff is how long no pod is made after others failed. It is told from the pods: who was killed waits as long.
func (s *state) backoff() time.Duration {
	var success, last time.Time
	for _, p := range s.pods {
		if p.Status.Phase == corev1.PodSucceeded {
			if at := endOf(p); at.After(success) {
				success = at
			}
		}
	}
	n := 0
	for _, p := range s.pods {
		if p.Status.Phase != corev1.PodFailed && !(tracked(p) && s.lostPod(p)) {
			continue
		}
		at := endOf(p)
		if !at.After(success) && !success.IsZero() {
			continue
		}
		n++
		if at.After(last) {
			last = at
		}
	}
	return waitFor(n, last, s.now)
}

func waitFor(failures int, last, now time.Time) time.Duration {
	if failures == 0 {
		return 0
	}
	wait := lastBackoff
	if shift := failures - 1; shift < 16 {
		wait = min(firstBackoff<<shift, lastBackoff)
	}
	return max(last.Add(wait).Sub(now), 0)
}

// endOf is when a pod ended: its last container, or what else says it.
func endOf(p *corev1.Pod) time.Time {
	var end time.Time
	all := len(p.Status.ContainerStatuses) > 0
	for _, c := range p.Status.ContainerStatuses {
		t := c.State.Terminated
		if t == nil || t.FinishedAt.IsZero() {
			all = false
			break
		}
		if t.FinishedAt.After(end) {
			end = t.FinishedAt.Time
		}
	}
	if all {
		return end
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Time
		}
	}
	if p.DeletionTimestamp != nil {
		grace := int64(0)
		if p.DeletionGracePeriodSeconds != nil {
			grace = *p.DeletionGracePeriodSeconds
		}
		return p.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return p.CreationTimestamp.Time
}
