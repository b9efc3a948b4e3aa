package source

import (
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// queue holds what the consumer has not taken yet, the latest of each key only, in the order the keys were first
// changed, but objects before the pods that may refer to them, and objects that go after those. A consumer that is slow
// misses states in between, and never the last one.
type queue struct {
	lines   [3][]object.Ref // objects, pods, objects that go
	pending map[object.Ref]desired.Update
	sent    map[object.Ref]string // version of what the consumer has
	hashes  map[object.Ref]string // version of what is pending
	synced  bool                  // the marker was sent
	scanned bool                  // the marker may be sent, once nothing is pending
}

func newQueue() *queue {
	return &queue{
		pending: map[object.Ref]desired.Update{},
		sent:    map[object.Ref]string{},
		hashes:  map[object.Ref]string{},
	}
}

// lineOf is where an update waits for its turn.
func lineOf(u *desired.Update) int {
	switch {
	case u.Kind == object.Pod:
		return 1
	case u.Object == nil:
		return 2
	}
	return 0
}

// put replaces what is pending for the key of u; hash tells one version from another and is "" for a removal.
func (q *queue) put(u desired.Update, hash string) {
	key := u.Ref()
	before, waiting := q.pending[key]
	if q.sent[key] == hash {
		// Back to what the consumer has: there is nothing to tell.
		if waiting {
			delete(q.pending, key)
			delete(q.hashes, key)
		}
		return
	}
	if line := lineOf(&u); !waiting || lineOf(&before) != line {
		q.lines[line] = append(q.lines[line], key)
	}
	q.pending[key], q.hashes[key] = u, hash
}

// head returns what to send next.
func (q *queue) head() (desired.Update, bool) {
	for i := range q.lines {
		for len(q.lines[i]) > 0 {
			// What has changed its line is found there too.
			if u, ok := q.pending[q.lines[i][0]]; ok && lineOf(&u) == i {
				return u, true
			}
			q.lines[i] = q.lines[i][1:]
		}
	}
	return desired.Update{Synced: true}, q.scanned && !q.synced
}

// taken notes that the consumer has u.
func (q *queue) taken(u desired.Update) {
	if u.Synced {
		q.synced = true
		return
	}
	key := u.Ref()
	if h := q.hashes[key]; h != "" {
		q.sent[key] = h
	} else {
		delete(q.sent, key)
	}
	delete(q.pending, key)
	delete(q.hashes, key)
	q.lines[lineOf(&u)] = q.lines[lineOf(&u)][1:]
}
