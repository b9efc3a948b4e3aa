package pod

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// registry has the worker of each pod, for those who are not the manager's goroutine.
type registry struct {
	status Statuses
	synced atomic.Bool   // every pod that was wanted at the start is known
	came   chan struct{} // receives when there is another worker

	mu      sync.RWMutex
	workers map[types.UID]*worker
	stopped map[*worker]bool // those whose pod was evicted, and has come to its end
}

// keyOf is the name by which a pod is known.
func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func newRegistry(s Statuses) *registry {
	return &registry{status: s, came: make(chan struct{}, 1), workers: map[types.UID]*worker{}, stopped: map[*worker]bool{}}
}

func (r *registry) get(uid types.UID) (*worker, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	w, ok := r.workers[uid]
	return w, ok
}

func (r *registry) has(uid types.UID) bool {
	_, ok := r.get(uid)
	return ok
}

// all are the workers at the moment.
func (r *registry) all() []*worker {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Values(r.workers))
}

func (r *registry) put(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[w.uid] = w
	select {
	case r.came <- struct{}{}:
	default:
	}
}

// evictionDone takes note that a worker's pod was evicted and has come to its end.
func (r *registry) evictionDone(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped[w] = true
}

// evicted are the workers whose pods were evicted and have come to their end.
func (r *registry) evicted() []*worker {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Collect(maps.Keys(r.stopped))
}

// drop forgets a worker, unless the pod has another one by now.
func (r *registry) drop(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.stopped, w)
	if r.workers[w.uid] == w {
		delete(r.workers, w.uid)
	}
}

// pods are all that have a worker, with their status once they have one; false before all are known.
func (r *registry) pods() ([]*corev1.Pod, bool) {
	told := map[types.NamespacedName]*corev1.Pod{}
	for _, p := range r.status.List() {
		told[keyOf(p)] = p
	}
	var out []*corev1.Pod
	for _, w := range r.all() {
		p := told[keyOf(w.share.Pod)]
		if p == nil || p.UID != w.uid {
			p = w.share.Pod
		}
		out = append(out, p)
	}
	return out, r.synced.Load()
}

// retryDeferred wakes the pods whose resize is deferred, as the node may have enough for it now.
func (r *registry) retryDeferred() {
	for _, w := range r.all() {
		if w.told.deferred.Load() {
			w.mail.ring()
		}
	}
}

// ringAll has every worker plan again.
func (r *registry) ringAll() {
	for _, w := range r.all() {
		w.mail.ring()
	}
}

// lookAll makes every worker look at its pod, whatever it was told.
func (r *registry) lookAll() {
	for _, w := range r.all() {
		w.mail.putLook()
	}
}
