package event

import (
	"hash/maphash"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// entry is an event as it is kept, in memory and in the file: without what all Events of a node have in common and what can be worked out
// from the rest, which is most of an Event.
type entry struct {
	Namespace string    `json:"ns,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Version   string    `json:"rv,omitempty"`
	Field     string    `json:"field,omitempty"`
	Type      string    `json:"type"`
	Reason    string    `json:"reason"`
	Message   string    `json:"msg"`
	First     int64     `json:"first"` // ns since 1970
	Last      int64     `json:"last"`
	Born      int64     `json:"born"`   // the serial with which it came
	Serial    int64     `json:"serial"` // and that of its last change
	Count     int32     `json:"count"`
	Node      bool      `json:"node,omitempty"`
	Combined  bool      `json:"combined,omitempty"` // it stands for all of its kind, whatever their messages
}

// same says whether two events are one that has happened twice.
func (e *entry) same(o *entry) bool {
	return e.UID == o.UID && e.Type == o.Type && e.Reason == o.Reason && e.Combined == o.Combined &&
		(e.Combined || e.Field == o.Field && e.Message == o.Message)
}

// ring has the latest events in the order in which they were first seen.
type ring struct {
	entries []entry
	from    int              // the oldest
	limit   int              // of entries
	byHash  map[uint64]int32 // where in entries; of two with one hash only the later is found
	seed    maphash.Seed
}

func newRing(limit int) ring {
	return ring{limit: limit, byHash: map[uint64]int32{}, seed: maphash.MakeSeed()}
}

func (r *ring) hash(e *entry) uint64 {
	var h maphash.Hash
	h.SetSeed(r.seed)
	parts := []string{string(e.UID), e.Type, e.Reason}
	if !e.Combined {
		parts = append(parts, e.Field, e.Message)
	}
	for _, s := range parts {
		_, _ = h.WriteString(s) // it never fails
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// like is the event that this one repeats, nil when there is none.
func (r *ring) like(e *entry) *entry {
	if i, ok := r.byHash[r.hash(e)]; ok && r.entries[i].same(e) {
		return &r.entries[i]
	}
	return nil
}

// add keeps an event, at the cost of the oldest when there is no room.
func (r *ring) add(e entry) {
	at := len(r.entries)
	if at < r.limit {
		r.entries = append(r.entries, e)
	} else {
		at = r.from
		if h := r.hash(&r.entries[at]); r.byHash[h] == int32(at) {
			delete(r.byHash, h)
		}
		r.entries[at] = e
		r.from = (at + 1) % r.limit
	}
	r.byHash[r.hash(&e)] = int32(at)
}

// since are copies of those that have changed after the serial, the oldest first.
func (r *ring) since(serial int64) []entry {
	var out []entry
	for _, part := range [][]entry{r.entries[r.from:], r.entries[:r.from]} {
		if serial == 0 {
			out = append(slices.Grow(out, len(r.entries)), part...)
			continue
		}
		for i := range part {
			if part[i].Serial > serial {
				out = append(out, part[i])
			}
		}
	}
	return out
}
