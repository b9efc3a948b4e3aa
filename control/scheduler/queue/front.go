package queue

import (
	"container/heap"
	"time"
)

// front is the pods that are next. Their order is by priority and by time, whosever they are: one namespace with many
// pods that each take seconds to look at would have all others wait for all of them. So what attempts to schedule its
// pods have taken, beyond what is usual, a namespace owes; it waits until the others have had as much. However many
// namespaces owe, the others have half of the time, if they need it.
type front struct {
	active pods
	// owed is until which turn a namespace waits. Who owes nothing is not there.
	owed map[string]time.Duration
	// turn goes on while nobody who owes is attempted: divided by how many there are, each of whom waits for as much.
	turn  time.Duration
	since time.Time
	// aside are the pods that would be next, of namespaces that owe or have owed.
	aside map[string]*pods
}

// usual is what an attempt may take and nobody owes anything for it: many times what one takes among thousands of
// nodes, so that on a busy machine, too, the order is that of priorities.
const usual = 50 * time.Millisecond

func newFront() front {
	return front{owed: map[string]time.Duration{}, aside: map[string]*pods{}}
}

// Spent says how long an attempt to schedule pods of a namespace has taken, which has just ended.
func (q *Queue) Spent(namespace string, took time.Duration) {
	if took <= usual {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	f, now := &q.front, q.now()
	f.pass(now.Add(-took))
	f.since = now
	f.owed[namespace] = max(f.owed[namespace], f.turn) + took
}

// pass has the turn go on to a time.
func (f *front) pass(now time.Time) {
	if len(f.owed) == 0 {
		return
	}
	if gone := now.Sub(f.since); gone > 0 {
		f.forward(f.turn + gone/time.Duration(len(f.owed)))
		f.since = now
	}
}

// forward has it be the turn of all who have waited for one.
func (f *front) forward(turn time.Duration) {
	f.turn = turn
	for namespace, until := range f.owed {
		if until <= turn {
			delete(f.owed, namespace)
		}
	}
}

// next is the pod that is next, which stays where it is; nil: none is.
func (f *front) next(now time.Time) *Pod {
	if len(f.owed) == 0 && len(f.aside) == 0 {
		return f.active.first()
	}
	f.pass(now)
	for p := f.active.first(); p != nil; p = f.active.first() {
		if f.owed[p.Pod().Namespace] == 0 {
			break
		}
		heap.Pop(&f.active)
		f.put(p)
	}
	best, least := f.active.first(), ""
	for namespace, list := range f.aside {
		until, owes := f.owed[namespace]
		switch p := list.first(); {
		case owes:
			if least == "" || until < f.owed[least] {
				least = namespace
			}
		case best == nil || f.active.less(p, best):
			best = p
		}
	}
	if best == nil && least != "" {
		f.forward(f.owed[least]) // nobody else needs the time
		best = f.aside[least].first()
	}
	return best
}

func (f *front) put(p *Pod) {
	namespace := p.Pod().Namespace
	if f.aside[namespace] == nil {
		f.aside[namespace] = &pods{less: f.active.less}
	}
	p.where = inAside
	heap.Push(f.aside[namespace], p)
}

// remove takes a pod away that was put aside.
func (f *front) remove(p *Pod) {
	namespace := p.Pod().Namespace
	list := f.aside[namespace]
	heap.Remove(list, p.index)
	if list.Len() == 0 {
		delete(f.aside, namespace)
	}
}

// len is how many pods there are.
func (f *front) len() int {
	n := f.active.Len()
	for _, list := range f.aside {
		n += list.Len()
	}
	return n
}

// first is the pod at the top; nil: there is none.
func (h *pods) first() *Pod {
	if len(h.list) == 0 {
		return nil
	}
	return h.list[0]
}
