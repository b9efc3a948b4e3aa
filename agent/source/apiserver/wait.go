package apiserver

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/object"
)

// waiting are the pods that wait for what they refer to. They wait as long as the server goes on to answer, and not for
// one that is slow: the node starts a pod when what it needs has come.
type waiting struct {
	pace  timing
	pods  map[types.NamespacedName]*podState
	alarm *time.Timer // when one of them waits no longer
	armed bool
}

func newWaiting(pace timing) *waiting {
	return &waiting{pace: pace, pods: map[types.NamespacedName]*podState{}, alarm: time.NewTimer(time.Hour)}
}

func (w *waiting) has(key types.NamespacedName) bool { return w.pods[key] != nil }

func (w *waiting) begin(st *podState) {
	if w.pods[st.key] == nil {
		st.since = time.Now()
		st.heard = st.since
		w.pods[st.key] = st
	}
	w.arm(w.due(st))
}

// due is when a pod waits no longer.
func (w *waiting) due(st *podState) time.Time {
	due, most := st.heard.Add(w.pace.answer), st.since.Add(w.pace.all)
	if most.Before(due) {
		return most
	}
	return due
}

// arm has the alarm ring at a time, or before.
func (w *waiting) arm(at time.Time) {
	if !w.armed {
		w.armed = true
		w.alarm.Reset(time.Until(at))
	}
}

// over are those that have waited long enough, when the alarm has rung.
func (w *waiting) over() []*podState {
	w.armed = false
	var out []*podState
	var next time.Time
	for _, st := range w.pods {
		due := w.due(st)
		switch {
		case time.Until(due) <= 0:
			out = append(out, st)
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	if !next.IsZero() {
		w.arm(next)
	}
	return out
}

// overdue sends the pods that have waited long enough.
func (s *Source) overdue() {
	for _, st := range s.waiting.over() {
		s.log.Warn("API server has not answered for all that a pod refers to, which starts when it has", "pod", st.key.String(),
			"uid", string(st.pod.UID), "missing", len(st.lacks))
		clear(st.lacks)
		s.offer(st)
	}
}

// settled notes that a pod does not wait.
func (s *Source) settled(st *podState) {
	delete(s.waiting.pods, st.key)
	delete(s.keeping.held, st.key)
	if s.initial[st.key] {
		delete(s.initial, st.key)
		s.queue.listed = s.queue.listed || s.listed && len(s.initial) == 0
	}
}

// answered notes that the server has said what there is to say of an object.
func (s *Source) answered(e *entry) {
	e.answered = true
	for key := range e.users {
		st := s.pods[key]
		if !st.lacks[e.ref] {
			continue
		}
		delete(st.lacks, e.ref)
		st.heard = time.Now()
		if len(st.lacks) == 0 && s.waiting.has(key) {
			s.offer(st)
		}
	}
}

// hold has a pod refer to these objects and no others. nil: it refers to none.
func (s *Source) hold(st *podState, refs map[object.Ref]bool) {
	before := st.refs
	st.refs = refs
	for ref := range refs {
		if before[ref] {
			continue
		}
		e := s.objects.use(ref)
		e.users[st.key] = true
		if !e.answered {
			if st.lacks == nil {
				st.lacks = map[object.Ref]bool{}
			}
			st.lacks[ref] = true
		}
	}
	for ref := range before {
		if refs[ref] {
			continue
		}
		delete(st.lacks, ref)
		e := s.objects.entries[ref]
		delete(e.users, st.key)
		if len(e.users) == 0 {
			s.objects.forget(e)
		}
	}
}
