package event

import (
	"hash/maphash"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// entry is an event as it is kept, in memory and in the file: without what all Events of a node have in common and what
// can be worked out from the rest, which is most of an Event.
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
	Kind      string    `json:"kind,omitempty"`     // of what is neither a pod nor the node
	API       string    `json:"api,omitempty"`      // and its group and version, "" = v1
	Combined  bool      `json:"combined,omitempty"` // it stands for all of its kind, whatever their messages

	Annotations map[string]string `json:"annotations,omitempty"` // of the last time
}

// same says whether two events are one that has happened twice.
func (e *entry) same(o *entry) bool {
	return e.UID == o.UID && e.Type == o.Type && e.Reason == o.Reason && e.Combined == o.Combined &&
		(e.Combined || e.Field == o.Field && e.Message == o.Message)
}

// buffer has the latest events in the order in which they were first seen.
type buffer struct {
	entries []entry
	from    int              // the oldest
	limit   int              // of entries
	byHash  map[uint64]int32 // where in entries; of two with one hash only the later is found
	seed    maphash.Seed
}

func newBuffer(limit int) buffer {
	return buffer{limit: limit, byHash: map[uint64]int32{}, seed: maphash.MakeSeed()}
}

func (b *buffer) hash(e *entry) uint64 {
	var h maphash.Hash
	h.SetSeed(b.seed)
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
func (b *buffer) like(e *entry) *entry {
	if i, ok := b.byHash[b.hash(e)]; ok && b.entries[i].same(e) {
		return &b.entries[i]
	}
	return nil
}

// add keeps an event, at the cost of the oldest when there is no room.
func (b *buffer) add(e entry) {
	at := len(b.entries)
	if at < b.limit {
		b.entries = append(b.entries, e)
	} else {
		at = b.from
		if h := b.hash(&b.entries[at]); b.byHash[h] == int32(at) {
			delete(b.byHash, h)
		}
		b.entries[at] = e
		b.from = (at + 1) % b.limit
	}
	b.byHash[b.hash(&e)] = int32(at)
}

// since are copies of those that have changed after the serial, the oldest first.
func (b *buffer) since(serial int64) []entry {
	var out []entry
	for _, part := range [][]entry{b.entries[b.from:], b.entries[:b.from]} {
		if serial == 0 {
			out = append(slices.Grow(out, len(b.entries)), part...)
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
