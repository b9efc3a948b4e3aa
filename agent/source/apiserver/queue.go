package apiserver

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// queue holds what the consumer has not taken yet, the latest of each key only: objects before the pods that may refer
// to them, and objects that go after those. A consumer that is slow misses states in between, and never the last one,
// nor that a pod was deleted before another one was made under its name.
type queue struct {
	lines   [3]line // objects, pods, objects that go
	pending map[object.Ref]*queued
	has     map[object.Ref]version // what the consumer has
	synced  bool                   // the marker was sent
	listed  bool                   // the marker may be sent, once nothing is pending
}

// version tells one state of an object from another, also of one that was made anew under the name.
type version struct {
	uid      types.UID
	resource string
}

type queued struct {
	update  desired.Update
	version version // zero: it is gone
	ended   bool    // the pod that the consumer has is to go before
}

func newQueue() *queue {
	q := &queue{pending: map[object.Ref]*queued{}, has: map[object.Ref]version{}}
	for i := range q.lines {
		q.lines[i].in = map[object.Ref]bool{}
	}
	return q
}

// line is keys in the order they came, each once.
type line struct {
	keys []object.Ref
	in   map[object.Ref]bool
}

func (l *line) add(key object.Ref) {
	if !l.in[key] {
		l.in[key] = true
		l.keys = append(l.keys, key)
	}
}

func (l *line) shift() {
	delete(l.in, l.keys[0])
	l.keys = l.keys[1:]
}

// lineOf is where an update waits for its turn.
func lineOf(u *desired.Update) int {
	switch {
	case u.Kind == object.Pod:
		return 1
	case u.Object == nil && !u.Listed:
		return 2
	}
	return 0
}

// put replaces what is pending for the key of u.
func (q *queue) put(u desired.Update, v version) {
	u.Origin = desired.API
	key := u.Ref()
	has, known := q.has[key]
	if known && has == v || !known && v == (version{}) {
		// Back to what the consumer has: there is nothing to tell.
		delete(q.pending, key)
		return
	}
	// Where another pod has the name, whatever runs of the one before has to end.
	q.pending[key] = &queued{update: u, version: v, ended: u.Pod != nil && known && has.uid != v.uid}
	q.lines[lineOf(&u)].add(key)
}

// all notes that every object of a kind that there was has been put.
func (q *queue) all(k object.Kind) {
	q.put(desired.Update{Kind: k, Listed: true}, version{resource: "all"})
}

// none has what is told of a kind be told again, since it is not followed any more.
func (q *queue) none(k object.Kind) {
	delete(q.pending, object.Ref{Kind: k})
	delete(q.has, object.Ref{Kind: k})
}

// head returns what to send next.
func (q *queue) head() (desired.Update, bool) {
	for i := range q.lines {
		for len(q.lines[i].keys) > 0 {
			key := q.lines[i].keys[0]
			// What has changed its line, or was taken back, is found there too.
			if p := q.pending[key]; p != nil && lineOf(&p.update) == i {
				if p.ended {
					return desired.Update{Kind: key.Kind, Key: key.NamespacedName, Origin: desired.API}, true
				}
				return p.update, true
			}
			q.lines[i].shift()
		}
	}
	return desired.Update{Synced: true, Origin: desired.API}, q.listed && !q.synced
}

// taken notes that the consumer has u, which head has returned.
func (q *queue) taken(u desired.Update) {
	if u.Synced {
		q.synced = true
		return
	}
	key := u.Ref()
	p := q.pending[key]
	if p.ended {
		p.ended = false
		delete(q.has, key)
		return
	}
	delete(q.pending, key)
	if p.version == (version{}) {
		delete(q.has, key)
	} else {
		q.has[key] = p.version
	}
	q.lines[lineOf(&u)].shift()
}
