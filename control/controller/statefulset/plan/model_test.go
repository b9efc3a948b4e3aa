package plan_test

import (
	"slices"

	"github.com/berth-node/berth/control/controller/statefulset/plan"
)

// judge holds steps to the reference model: what may be done is said by rules that know nothing of an order in which
// pods are gone through, each step for itself, and there is a step whenever there may be one.
func (w *world) judge(pods []plan.Pod, steps []plan.Step) {
	budget := w.set.MaxUnavailable
	for o := range span(w.set) {
		if !healthy(pods, o) {
			budget--
		}
	}
	acts := 0
	for _, s := range steps {
		if s.Verb != plan.Repair {
			acts++
		}
		if slices.ContainsFunc(steps, func(o plan.Step) bool { return o.Verb == s.Verb && o.Ordinal == s.Ordinal && o != s }) {
			w.fail("%v twice, of %+v", s, steps)
		}
		update := s.Verb == plan.Delete && !finished(pods, s.Ordinal) && w.set.Wants(s.Ordinal)
		if update {
			budget--
		}
		if !may(w.set, pods, s) || update && budget < 0 {
			w.fail("%v may not be, of %+v with %+v", s, w.set, pods)
		}
	}
	if !w.set.Parallel && acts > 1 && acts > w.set.MaxUnavailable {
		w.fail("%v are several at a time, of %+v with %+v", steps, w.set, pods)
	}
	if acts == 0 {
		if s, is := some(w.set, pods, budget); is {
			w.fail("nothing is next, and %v may be, of %+v with %+v", s, w.set, pods)
		}
	}
}

// span are the ordinals that are wanted.
func span(s plan.Set) func(func(int) bool) {
	return func(yield func(int) bool) {
		for o := s.Start; o < s.Start+s.Replicas && yield(o); o++ {
		}
	}
}

func find(pods []plan.Pod, o int) (plan.Pod, bool) {
	i := slices.IndexFunc(pods, func(p plan.Pod) bool { return p.Ordinal == o })
	if i < 0 {
		return plan.Pod{}, false
	}
	return pods[i], true
}

func healthy(pods []plan.Pod, o int) bool {
	p, has := find(pods, o)
	return has && p.Available && !p.Terminating
}

func finished(pods []plan.Pod, o int) bool {
	p, _ := find(pods, o)
	return p.Finished
}

// may says whether a step is allowed by the rules of Kubernetes' documentation.
func may(s plan.Set, pods []plan.Pod, step plan.Step) bool {
	p, has := find(pods, step.Ordinal)
	below, all := true, true
	for o := range span(s) {
		if !healthy(pods, o) || finished(pods, o) {
			all = false
			if o < step.Ordinal {
				below = false
			}
		}
	}
	inOrder := s.Parallel || below
	switch step.Verb {
	case plan.Repair:
		return has && p.Broken && !p.Terminating
	case plan.Create:
		first := !s.OnDelete && step.Ordinal-s.Start < s.Partition
		return !has && s.Wants(step.Ordinal) && inOrder && step.Revision == map[bool]string{true: s.Current, false: s.Update}[first]
	}
	switch {
	case !has || p.Terminating:
		return false
	case s.Wants(step.Ordinal) && p.Finished:
		return inOrder
	case s.Wants(step.Ordinal):
		return !s.OnDelete && p.Revision != s.Update && step.Ordinal-s.Start >= s.Partition && (s.Parallel || all && onlyWanted(s, pods))
	case s.Parallel:
		return true
	}
	// Ordered: all that are wanted are healthy, those above are gone, and if this one may become healthy, those below
	// are.
	for _, o := range pods {
		if o.Ordinal > step.Ordinal && !s.Wants(o.Ordinal) {
			return false
		}
		if !p.Available && !p.Finished && !s.Wants(o.Ordinal) && o.Ordinal < step.Ordinal && !healthy(pods, o.Ordinal) {
			return false
		}
	}
	return all
}

func onlyWanted(s plan.Set, pods []plan.Pod) bool {
	return !slices.ContainsFunc(pods, func(p plan.Pod) bool { return !s.Wants(p.Ordinal) })
}

// some finds a step that may be done.
func some(s plan.Set, pods []plan.Pod, budget int) (plan.Step, bool) {
	for o := range 12 {
		for _, step := range []plan.Step{{Verb: plan.Create, Ordinal: o, Revision: s.Current}, {Verb: plan.Create, Ordinal: o, Revision: s.Update}, {Verb: plan.Delete, Ordinal: o}} {
			update := step.Verb == plan.Delete && s.Wants(o) && !finished(pods, o)
			if may(s, pods, step) && (!update || budget > 0) {
				return step, true
			}
		}
	}
	return plan.Step{}, false
}
