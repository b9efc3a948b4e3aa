package controller

import "k8s.io/client-go/tools/cache"

// turns is the queue of a loop: the namespaces that have keys in it take turns, a key each. Anybody may have thousands
// of objects that change all the time, and what others change is not to wait until all of them have been looked at.
// Within a namespace who came first is first. It implements [workqueue.Queue], which is called under a lock.
type turns[K comparable] struct {
	space func(K) string
	keys  map[string][]K
	next  []string // the namespaces with keys, each once
	n     int
}

func newTurns[K comparable]() *turns[K] {
	return &turns[K]{space: spaceOf[K], keys: map[string][]K{}}
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

// Push implements [workqueue.Queue].
func (t *turns[K]) Push(key K) {
	space := t.space(key)
	before := t.keys[space]
	if len(before) == 0 {
		t.next = append(t.next, space)
	}
	t.keys[space] = append(before, key)
	t.n++
}

// Len implements [workqueue.Queue].
func (t *turns[K]) Len() int { return t.n }

// Pop implements [workqueue.Queue].
func (t *turns[K]) Pop() K {
	space := t.next[0]
	t.next = t.next[1:]
	key := t.keys[space][0]
	if left := t.keys[space][1:]; len(left) > 0 {
		t.keys[space] = left
		t.next = append(t.next, space)
	} else {
		delete(t.keys, space)
	}
	t.n--
	return key
}
