package event

import (
	"hash/maphash"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// What client-go's recorders do with events that differ in nothing but their message, so that one pod that fails in
// ever new words does not push all others out: from the tenth within ten minutes on they are one event, with the last
// of the messages.
const (
	maxSimilar     = 10
	similarFor     = 10 * time.Minute
	combinedPrefix = "(combined from similar events): "
)

// kind is what similar events have in common.
type kind struct {
	uid         types.UID
	typ, reason string
}

// similar are the messages of one kind of events.
type similar struct {
	messages []uint64 // hashes
	last     time.Time
}

// combine says whether an event goes into the one that stands for its kind.
func (r *Ring) combine(e *entry, now time.Time) bool {
	of := kind{e.UID, e.Type, e.Reason}
	s := r.similar[of]
	if s == nil || now.Sub(s.last) > similarFor {
		s = &similar{}
		r.similar[of] = s
	}
	s.last = now
	message := maphash.String(r.kept.seed, e.Message)
	if slices.Contains(s.messages, message) {
		return false
	}
	if len(s.messages) >= maxSimilar-1 {
		return true
	}
	s.messages = append(s.messages, message)
	if len(r.similar) > r.tidy {
		r.dropSimilar(now)
	}
	return false
}

// dropSimilar drops the kinds of which nothing has come for a while. The next time is when there are twice as many as
// are left: while many pods come and go all are new, and to look at them for each event takes longer than the event.
func (r *Ring) dropSimilar(now time.Time) {
	for of, s := range r.similar {
		if now.Sub(s.last) > similarFor {
			delete(r.similar, of)
		}
	}
	r.tidy = max(r.cfg.Capacity, 2*len(r.similar))
}
