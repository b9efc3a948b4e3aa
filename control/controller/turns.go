package controller

import (
	"sync"

	"k8s.io/client-go/tools/cache"
)

// turns is the queue of a loop: the namespaces that have keys in it take turns, a key each. Anybody may have thousands
// of objects that change all the time, and what others change is not to wait until all of them have been looked at.
// Within a namespace who came first is first. It implements [workqueue.Queue], which is called under a lock.
//
// Nor is it to wait for objects of one namespace that take long to look at each: the last worker is for others.
type turns[K comparable] struct {
	space func(K) string
	most  int // of a namespace's keys are looked at at a time

	mu     sync.Mutex // done is not called under the queue's lock
	keys   map[string][]K
	next   []string // the namespaces with keys that may be looked at, each once
	n      int      // keys of these
	looked map[string]int
	of     map[K]string // of the keys that are looked at, where they are
}

func newTurns[K comparable](workers int) *turns[K] {
	return &turns[K]{space: spaceOf[K], most: max(1, workers-1), keys: map[string][]K{}, looked: map[string]int{}, of: map[K]string{}}
}

// spaceOf is the namespace of a key that says so; all others are of one.
func spaceOf[K comparable](key K) string {
	if name, is := any(key).(cache.ObjectName); is {
		return name.Namespace
	}
	return ""
}

// Touch implements [workqueue.Queue]. Who comes again has the place that it had.
func (t *turns[K]) Touch(K) {}

// full says whether as many keys of a namespace are looked at as may be. What is of no namespace is of many.
func (t *turns[K]) full(space string) bool { return space != "" && t.looked[space] >= t.most }

// Push implements [workqueue.Queue].
func (t *turns[K]) Push(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	space := t.space(key)
	before := t.keys[space]
	t.keys[space] = append(before, key)
	if t.full(space) {
		return
	}
	if len(before) == 0 {
		t.next = append(t.next, space)
	}
	t.n++
}

// Len implements [workqueue.Queue]: it is how many may be looked at now.
func (t *turns[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// Pop implements [workqueue.Queue].
func (t *turns[K]) Pop() K {
	t.mu.Lock()
	defer t.mu.Unlock()
	space := t.next[0]
	t.next = t.next[1:]
	key := t.keys[space][0]
	t.n--
	t.looked[space]++
	t.of[key] = space
	left := t.keys[space][1:]
	switch {
	case len(left) == 0:
		delete(t.keys, space)
		return key
	case t.full(space):
		t.n -= len(left)
	default:
		t.next = append(t.next, space)
	}
	t.keys[space] = left
	return key
}

// done is called when a key has been looked at, by who takes the next one from the queue then: nobody else is told that
// there may be one more.
func (t *turns[K]) done(key K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	space := t.of[key]
	delete(t.of, key)
	if left := t.keys[space]; len(left) > 0 && t.full(space) {
		t.next = append(t.next, space)
		t.n += len(left)
	}
	if t.looked[space]--; t.looked[space] <= 0 {
		delete(t.looked, space)
	}
}
