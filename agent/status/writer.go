package status

import (
	"context"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Sink is told everything that a [Writer] is told, in the order in which it is. What it is handed is shared and must
// not be changed. Its methods return at once, and do not call the Writer.
type Sink interface {
	// Put tells of a pod with its status.
	Put(pod *corev1.Pod)
	// Delete tells that the node has nothing of the pod any more, also of one that was never put.
	Delete(pod *corev1.Pod)
}

// Writer owns what was last said about each pod. Whoever asks is told from here, and whoever watches hears of every
// change, though a slow watcher hears only the last of several changes of one pod. Sinks hear all. What it hands out is
// shared and must not be changed.
type Writer struct {
	sinks []Sink

	mu    sync.Mutex // held while sinks are told, so that they hear of changes in their order
	pods  map[types.NamespacedName]*corev1.Pod
	watch map[*watcher]struct{}
}

// NewWriter returns a Writer that knows of no pod.
func NewWriter(sinks ...Sink) *Writer {
	return &Writer{sinks: sinks, pods: map[types.NamespacedName]*corev1.Pod{}, watch: map[*watcher]struct{}{}}
}

type change struct {
	typ watch.EventType
	pod *corev1.Pod
}

// watcher holds what one Watch has not been told yet.
type watcher struct {
	order   []types.NamespacedName
	pending map[types.NamespacedName][]change // at most a DELETED and what came after it
	wake    chan struct{}
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// Put publishes the pod with its status. The Writer keeps the pod; the caller must not change it afterwards. Its
// resourceVersion is that of an API server, if one has the pod, and no version of ours.
func (w *Writer) Put(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sinks {
		s.Put(pod)
	}
	key := keyOf(pod)
	old, known := w.pods[key]
	w.pods[key] = pod
	if known && old.UID != pod.UID {
		// Two pods that follow each other under one name are two objects to whoever watches.
		w.tell(key, change{watch.Deleted, old})
		known = false
	}
	typ := watch.Added
	if known {
		typ = watch.Modified
	}
	w.tell(key, change{typ, pod})
}

// Delete forgets the pod, if it is the one known by its name. Sinks hear of it in any case: a pod that its API server
// deletes before it ever ran here is still waited for there.
func (w *Writer) Delete(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sinks {
		s.Delete(pod)
	}
	key := keyOf(pod)
	old, ok := w.pods[key]
	if !ok || old.UID != pod.UID {
		return
	}
	delete(w.pods, key)
	w.tell(key, change{watch.Deleted, old})
}

// tell hands the change to every watcher.
func (w *Writer) tell(key types.NamespacedName, c change) {
	for one := range w.watch {
		one.add(key, c)
	}
}

func (o *watcher) add(key types.NamespacedName, c change) {
	have, waiting := o.pending[key]
	if !waiting {
		o.order = append(o.order, key)
	}
	if n := len(have); n > 0 && c.typ != watch.Added {
		last := have[n-1]
		switch {
		case last.typ == watch.Added && c.typ == watch.Deleted:
			have = have[:n-1] // never seen, never gone
		case last.typ == watch.Added:
			have[n-1] = change{watch.Added, c.pod}
		case last.typ == watch.Modified:
			have[n-1] = c
		default:
			have = append(have, c)
		}
	} else {
		have = append(have, c)
	}
	o.pending[key] = have
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Get returns the pod of a name.
func (w *Writer) Get(key types.NamespacedName) (*corev1.Pod, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pod, ok := w.pods[key]
	return pod, ok
}

// List returns all pods in the order of their names.
func (w *Writer) List() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sorted()
}

func (w *Writer) sorted() []*corev1.Pod {
	out := make([]*corev1.Pod, 0, len(w.pods))
	for _, p := range w.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// Watch calls fn with ADDED for each pod there is, then with every change in order, until ctx ends or fn returns an
// error, which it returns.
func (w *Writer) Watch(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error {
	return w.Subscribe()(ctx, fn)
}

// Subscribe begins a Watch at the present moment. What it returns goes on with it, and must be called, once. Whoever
// tells somebody else that the watch has begun does it between the two: a pod that is there then and goes is told of as
// DELETED.
func (w *Writer) Subscribe() func(context.Context, func(watch.EventType, *corev1.Pod) error) error {
	o := &watcher{pending: map[types.NamespacedName][]change{}, wake: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	pods := w.sorted()
	w.watch[o] = struct{}{}
	return func(ctx context.Context, fn func(watch.EventType, *corev1.Pod) error) error {
		return w.follow(ctx, o, pods, fn)
	}
}

// follow tells of the pods that were there when o began, which o itself holds nothing of, so that one of them that goes
// before it was told is told all the same; then of what o holds.
func (w *Writer) follow(ctx context.Context, o *watcher, pods []*corev1.Pod, fn func(watch.EventType, *corev1.Pod) error) error {
	defer func() {
		w.mu.Lock()
		delete(w.watch, o)
		w.mu.Unlock()
	}()
	for _, p := range pods {
		if err := fn(watch.Added, p); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for {
		for _, c := range w.take(o) {
			if err := fn(c.typ, c.pod); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-o.wake:
		}
	}
}

func (w *Writer) take(o *watcher) []change {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []change
	for _, key := range o.order {
		out = append(out, o.pending[key]...)
	}
	o.order = o.order[:0]
	clear(o.pending)
	return out
}
