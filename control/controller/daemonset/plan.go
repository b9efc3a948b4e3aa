package daemonset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-node/berth/control/controller/owned"
)

// place is a node as a set sees it.
type place struct {
	node      string
	run, stay bool
	pods      []*corev1.Pod // of the set, on the node or pinned to it
}

// view is what is known of a set.
type view struct {
	hash     string // of the template as it is
	minReady int32
	places   []place
	now      time.Time
	again    time.Duration // when a pod that is ready counts as available
}

// step is what is to be done.
type step struct {
	create []string      // nodes
	remove []*corev1.Pod // those that nobody misses
	failed []*corev1.Pod // those that have ended: they are removed, the more often the later
}

func (s step) empty() bool { return len(s.create)+len(s.remove)+len(s.failed) == 0 }

func (v *view) available(p *corev1.Pod) bool {
	is, left := owned.Available(p, v.minReady, v.now)
	if left > 0 && (v.again == 0 || left < v.again) {
		v.again = left
	}
	return is
}

func (v *view) updated(p *corev1.Pod) bool {
	return p.Labels[appsv1.ControllerRevisionHashLabelKey] == v.hash
}

// manage has each node have one pod, where it is to have one. With surge a node has two for a while, one of before and
// one of now, until the new one is available.
func (v *view) manage(surge bool) step {
	var s step
	for _, at := range v.places {
		switch {
		case at.run && len(at.pods) == 0:
			s.create = append(s.create, at.node)
		case at.stay:
			v.keep(at, surge, &s)
		default:
			for _, p := range at.pods {
				if p.DeletionTimestamp == nil {
					s.remove = append(s.remove, p)
				}
			}
		}
	}
	return s
}

func (v *view) keep(at place, surge bool, s *step) {
	var running []*corev1.Pod
	ending := false
	for _, p := range at.pods {
		switch {
		case p.DeletionTimestamp != nil:
			ending = true
		case owned.Finished(p):
			s.failed = append(s.failed, p)
		default:
			running = append(running, p)
		}
	}
	slices.SortStableFunc(running, older)
	if !surge {
		if len(running) > 1 {
			s.remove = append(s.remove, running[1:]...)
		}
		return
	}
	// Of the old and of the new ones the oldest stays.
	var old, fresh *corev1.Pod
	for _, p := range running {
		one := &old
		if v.updated(p) {
			one = &fresh
		}
		if *one == nil {
			*one = p
		} else {
			s.remove = append(s.remove, p)
		}
	}
	switch {
	case old != nil && fresh != nil && v.available(fresh):
		s.remove = append(s.remove, old)
	case old == nil && fresh == nil && ending && at.run && len(running) == 0 && v.allOld(at.pods):
		// The old one goes, and nothing has to wait for its end.
		s.create = append(s.create, at.node)
	}
}

func (v *view) allOld(pods []*corev1.Pod) bool {
	return !slices.ContainsFunc(pods, v.updated)
}

// older has what is bound come before what is not, and the older one before the younger.
func older(a, b *corev1.Pod) int {
	if (a.Spec.NodeName == "") != (b.Spec.NodeName == "") {
		if a.Spec.NodeName == "" {
			return 1
		}
		return -1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// pair is the pod of now and the one of before on a node; false: there are more of one of them, which is put in order
// first.
func (v *view) pair(pods []*corev1.Pod) (fresh, old *corev1.Pod, ok bool) {
	for _, p := range pods {
		if p.DeletionTimestamp != nil && len(pods) > 1 {
			continue
		}
		one := &old
		if v.updated(p) {
			one = &fresh
		}
		if *one != nil {
			return nil, nil, false
		}
		*one = p
	}
	return fresh, old, true
}

// replace is the next step of a rolling update without surge: pods of before are ended, as many as may be missing.
// Those that are missing anyway come first.
func (v *view) replace(most int) step {
	var s step
	var candidates []*corev1.Pod
	missing := 0
	for _, at := range v.places {
		if !at.run {
			continue
		}
		fresh, old, ok := v.pair(at.pods)
		switch {
		case !ok || fresh == nil && old == nil:
			missing++
		case fresh != nil:
			if !v.available(fresh) || fresh.DeletionTimestamp != nil {
				missing++
			}
		case old.DeletionTimestamp != nil:
			missing++
		case !v.available(old):
			missing++
			s.remove = append(s.remove, old) // nobody misses it
		default:
			candidates = append(candidates, old)
		}
	}
	s.remove = append(s.remove, candidates[:min(len(candidates), max(0, most-missing))]...)
	return s
}

// surge is the next step of a rolling update with surge: pods of now are made beside those of before, as many as may
// be. Where the one of before is not available, the new one does not count.
func (v *view) surge(most int) step {
	var s step
	var candidates []string
	more := 0
	for _, at := range v.places {
		if !at.run {
			continue
		}
		fresh, old, ok := v.pair(at.pods)
		switch {
		case !ok || old == nil:
		case fresh == nil:
			if old.DeletionTimestamp != nil || !v.available(old) {
				s.create = append(s.create, at.node)
			} else {
				candidates = append(candidates, at.node)
			}
		case v.available(fresh):
			if old.DeletionTimestamp == nil {
				s.remove = append(s.remove, old)
			}
		default:
			more++
		}
	}
	s.create = append(s.create, candidates[:min(len(candidates), max(0, most-more))]...)
	return s
}

// limits are how many pods may be missing, and how many nodes may have two, during a rolling update. One of both is 0.
func limits(d *appsv1.DaemonSet, wanted int) (unavailable, surge int) {
	r := d.Spec.UpdateStrategy.RollingUpdate
	if d.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return 0, 0
	}
	if r == nil {
		return 1, 0
	}
	part := func(of *intstr.IntOrString, or int) int {
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(of, intstr.FromInt32(int32(or))), wanted, true)
		if err != nil {
			return or // the rules of the API have it be a number
		}
		return n
	}
	unavailable, surge = part(r.MaxUnavailable, 1), part(r.MaxSurge, 0)
	if unavailable == 0 && surge == 0 {
		unavailable = 1
	}
	return unavailable, surge
}

// count is what a set says of its pods.
func (v *view) count(d *appsv1.DaemonSet, observed bool) appsv1.DaemonSetStatus {
	s := appsv1.DaemonSetStatus{
		ObservedGeneration: d.Status.ObservedGeneration, CollisionCount: d.Status.CollisionCount, Conditions: d.Status.Conditions,
	}
	if observed {
		s.ObservedGeneration = d.Generation
	}
	for _, at := range v.places {
		if !at.run {
			if len(at.pods) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(at.pods) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		pods := slices.Clone(at.pods)
		slices.SortStableFunc(pods, older)
		p := pods[0]
		if owned.Ready(p) {
			s.NumberReady++
			if v.available(p) {
				s.NumberAvailable++
			}
		}
		if v.updated(p) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}
