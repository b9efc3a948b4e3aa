// Package plan decides what is next for the pods of a StatefulSet: a pure function of what is wanted and what there is.
//
// A pod's way, as the set sees it:
//
//	missing -> pending -> running -> ready -> available
//	   ^                                         |
//	   +--- terminating <--- (finished) <--------+
//
// Ordered, one step is taken at a time, and only when all pods below are available; parallel, all that can be are taken
// at once. Pods are updated from the highest ordinal down, as many at a time as may be unavailable.
package plan

import (
	"cmp"
	"slices"
)

// burst is how many pods are made before the others are thought of: a set may ask for as many as a number can say.
const burst = 500

// Set is what is wanted.
type Set struct {
	Start, Replicas int
	Parallel        bool // pods do not wait for each other
	OnDelete        bool // pods of another revision stay until somebody deletes them
	Ending          bool // the set itself is deleted
	Partition       int  // how many of the first pods stay at the current revision
	MaxUnavailable  int  // how many pods may be unavailable for an update
	Current, Update string
}

// Pod is one that there is.
type Pod struct {
	Ordinal     int
	Revision    string
	Created     bool // the API has given it a phase
	Ready       bool // it runs and is ready
	Available   bool // it has been ready for long enough
	Terminating bool
	Finished    bool // it has failed, or succeeded
	Broken      bool // its name, labels or claims are not as they are to be
}

func (p Pod) healthy() bool { return p.Available && !p.Terminating }

// Verb is what is done with a pod.
type Verb string

// Verbs.
const (
	Create Verb = "create"
	Delete Verb = "delete"
	Repair Verb = "repair" // identity and claims
)

// Step is what is next for one pod.
type Step struct {
	Verb     Verb
	Ordinal  int
	Revision string // of a pod that is made
}

// Wants says whether an ordinal is one of the set's.
func (s Set) Wants(ordinal int) bool { return ordinal >= s.Start && ordinal < s.Start+s.Replicas }

// RevisionOf is the revision that a pod is made of.
func (s Set) RevisionOf(ordinal int) string {
	if !s.OnDelete && ordinal < s.Start+s.Partition {
		return s.Current
	}
	return s.Update
}

// Next are the steps that may be taken now, in their order.
func Next(s Set, pods []Pod) []Step {
	if s.Ending {
		return nil
	}
	v := look(s, pods)
	if v.fill(); v.stopped {
		return v.steps
	}
	if v.shrink(); v.stopped {
		return v.steps
	}
	if !s.OnDelete {
		v.update()
	}
	return v.steps
}

type view struct {
	set       Set
	kept      map[int]Pod // by ordinal, of those that are wanted
	condemned []Pod       // the highest first
	steps     []Step
	gone      map[int]bool // those that a step deletes
	stopped   bool
}

func look(s Set, pods []Pod) *view {
	v := &view{set: s, kept: map[int]Pod{}, gone: map[int]bool{}}
	for _, p := range pods {
		switch {
		case s.Wants(p.Ordinal):
			v.kept[p.Ordinal] = p
		case p.Ordinal >= 0:
			v.condemned = append(v.condemned, p)
		}
	}
	slices.SortFunc(v.condemned, func(a, b Pod) int { return cmp.Compare(b.Ordinal, a.Ordinal) })
	return v
}

func (v *view) step(verb Verb, ordinal int, revision string) {
	v.steps = append(v.steps, Step{verb, ordinal, revision})
	if verb == Delete {
		v.gone[ordinal] = true
	}
}

// wait ends the plan where pods wait for each other.
func (v *view) wait() { v.stopped = v.stopped || !v.set.Parallel }

// fill has all pods be there that are wanted, from the lowest ordinal up. Of many that miss the first ones are made,
// which leads to the next look.
func (v *view) fill() {
	missing := 0
	for o := v.set.Start; o < v.set.Start+v.set.Replicas && !v.stopped; o++ {
		p, has := v.kept[o]
		if has && p.Broken && !p.Terminating && !p.Finished {
			v.step(Repair, o, "")
		}
		switch {
		case !has:
			v.step(Create, o, v.set.RevisionOf(o))
			v.wait()
			missing++
			v.stopped = v.stopped || missing == burst
		case p.Finished:
			// Its name is free for another one when it is gone.
			if !p.Terminating {
				v.step(Delete, o, "")
			}
			v.wait()
		case p.Terminating || !p.Ready || !p.Available:
			v.wait()
		}
	}
}

// shrink ends pods that are not wanted any more, from the highest ordinal down. Ordered, an unhealthy one holds up the
// others unless it is the first one of all that is, or has ended: waiting for it would be for ever.
func (v *view) shrink() {
	first := v.firstUnhealthy()
	// Claims that go with their pods are told so before.
	for _, p := range v.condemned {
		if p.Broken && !p.Terminating {
			v.step(Repair, p.Ordinal, "")
		}
	}
	for _, p := range v.condemned {
		if v.stopped {
			return
		}
		switch {
		case p.Terminating:
		case !v.set.Parallel && !p.healthy() && !p.Finished && p.Ordinal != first:
		default:
			v.step(Delete, p.Ordinal, "")
		}
		v.wait()
	}
}

// firstUnhealthy is the ordinal of the first pod that is not available, of those that are wanted and then of the
// others; -1: all are.
func (v *view) firstUnhealthy() int {
	for o := v.set.Start; o < v.set.Start+v.set.Replicas; o++ {
		if p, has := v.kept[o]; !has || !p.healthy() {
			return o
		}
	}
	for _, p := range slices.Backward(v.condemned) {
		if !p.healthy() {
			return p.Ordinal
		}
	}
	return -1
}

// update ends pods of another revision, the highest ordinal first, as far as pods may be unavailable. What is
// unavailable anyway counts.
func (v *view) update() {
	left := v.set.MaxUnavailable
	for o := v.set.Start; o < v.set.Start+v.set.Replicas; o++ {
		if p, has := v.kept[o]; !has || !p.healthy() {
			left--
		}
	}
	for o := v.set.Start + v.set.Replicas - 1; o >= v.set.Start+v.set.Partition && left > 0; o-- {
		p, has := v.kept[o]
		if !has || p.Terminating || v.gone[o] || p.Revision == v.set.Update {
			continue
		}
		v.step(Delete, o, "")
		left--
	}
}

// Status is what a set says of its pods.
type Status struct {
	Replicas, Ready, Available, Current, Updated int
	CurrentRevision                              string
}

// Count is the status of a set with its pods. When all are of the revision of now, that is the current one.
func Count(s Set, pods []Pod) Status {
	out := Status{CurrentRevision: s.Current}
	for _, p := range pods {
		if !p.Created {
			continue
		}
		out.Replicas++
		if p.Ready {
			out.Ready++
		}
		if p.Available {
			out.Available++
		}
		if p.Terminating {
			continue
		}
		if p.Revision == s.Current {
			out.Current++
		}
		if p.Revision == s.Update {
			out.Updated++
		}
	}
	if !s.OnDelete && out.Updated == s.Replicas && out.Ready == s.Replicas && out.Replicas == s.Replicas {
		out.Current, out.CurrentRevision = out.Updated, s.Update
	}
	return out
}
