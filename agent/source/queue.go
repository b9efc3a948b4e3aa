package source

import (
	"k8s.io/apimachinery/pkg/types"
)

// queue holds what the consumer has not taken yet, the latest of each key only, in the order the keys were first changed.
// A consumer that is slow misses states in between, and never the last one.
type queue struct {
	order   []types.NamespacedName
	pending map[types.NamespacedName]Update
	sent    map[types.NamespacedName]string // version of what the consumer has
	hashes  map[types.NamespacedName]string // version of what is pending
	synced  bool                            // the marker was sent
	scanned bool                            // the marker may be sent, once nothing is pending
}

func newQueue() *queue {
	return &queue{
		pending: map[types.NamespacedName]Update{},
		sent:    map[types.NamespacedName]string{},
		hashes:  map[types.NamespacedName]string{},
	}
}

// put replaces what is pending for the key of u; hash tells one version from another and is "" for a removal.
func (q *queue) put(u Update, hash string) {
	_, waiting := q.pending[u.Key]
	if q.sent[u.Key] == hash {
		// Back to what the consumer has: there is nothing to tell.
		if waiting {
			delete(q.pending, u.Key)
			delete(q.hashes, u.Key)
		}
		return
	}
	if !waiting {
		q.order = append(q.order, u.Key)
	}
	q.pending[u.Key], q.hashes[u.Key] = u, hash
}

// head returns what to send next.
func (q *queue) head() (Update, bool) {
	for len(q.order) > 0 {
		if u, ok := q.pending[q.order[0]]; ok {
			return u, true
		}
		q.order = q.order[1:]
	}
	return Update{Synced: true}, q.scanned && !q.synced
}

// taken notes that the consumer has u.
func (q *queue) taken(u Update) {
	if u.Synced {
		q.synced = true
		return
	}
	if h := q.hashes[u.Key]; h != "" {
		q.sent[u.Key] = h
	} else {
		delete(q.sent, u.Key)
	}
	delete(q.pending, u.Key)
	delete(q.hashes, u.Key)
	q.order = q.order[1:]
}
