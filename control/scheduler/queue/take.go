package queue

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Take hands out those of some pods that may be attempted, wherever they wait, as [Queue.Pop] does one after another:
// pods that are attempted together, the first of which was popped. Who is kept away is asked about again: what it has
// waited for may have been told of already.
func (q *Queue) Take(ctx context.Context, wanted []*corev1.Pod) []*Pod {
	q.mu.Lock()
	defer q.mu.Unlock()
	var taken []*Pod
	for _, pod := range wanted {
		p := q.pods[pod.UID]
		if p == nil || q.out[pod.UID] != nil {
			continue
		}
		if p.gating != "" {
			leave(q, p)
			if !q.enqueue(ctx, p) {
				q.toUnschedulable(p, nothing())
				continue
			}
		}
		leave(q, p)
		taken = append(taken, q.handOut(p))
	}
	slices.SortFunc(taken, func(a, b *Pod) int {
		if q.front.active.less(a, b) {
			return -1
		}
		return 1
	})
	return taken
}

// handOut notes that a pod is attempted, which is at no place.
func (q *Queue) handOut(p *Pod) *Pod {
	p.where = nowhere
	delete(q.pods, p.Pod().UID)
	q.flights.begin(p.Pod().UID)
	q.out[p.Pod().UID] = new(bool)
	p.tries.all++
	if p.first == nil {
		now := q.now()
		p.first = &now
	}
	p.unschedulable, p.pending = sets.New[string](), sets.New[string]()
	p.expires = time.Time{}
	return p
}
