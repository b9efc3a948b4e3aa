package queue

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// rejected are the pods for which something has to change, by the plugins that have rejected them.
type rejected struct {
	all      map[types.UID]*Pod
	byPlugin map[string]map[types.UID]*Pod
}

func newRejected() rejected {
	return rejected{all: map[types.UID]*Pod{}, byPlugin: map[string]map[types.UID]*Pod{}}
}

func (r *rejected) add(p *Pod) {
	uid := p.Pod().UID
	r.all[uid] = p
	for plugin := range p.plugins() {
		if r.byPlugin[plugin] == nil {
			r.byPlugin[plugin] = map[types.UID]*Pod{}
		}
		r.byPlugin[plugin][uid] = p
	}
}

func (r *rejected) remove(p *Pod) {
	uid := p.Pod().UID
	delete(r.all, uid)
	for plugin := range p.plugins() {
		delete(r.byPlugin[plugin], uid)
	}
}

// plugins yields those that a pod waits because of.
func (p *Pod) plugins() func(func(string) bool) {
	return func(yield func(string) bool) {
		if p.gating != "" {
			yield(p.gating)
			return
		}
		for plugin := range p.unschedulable {
			if !yield(plugin) {
				return
			}
		}
		for plugin := range p.pending {
			if !yield(plugin) {
				return
			}
		}
	}
}

// concerned are the pods whose plugins have registered for an event.
func (r *rejected) concerned(q *Queue, e *question) map[types.UID]*Pod {
	found := map[types.UID]*Pod{}
	if e.event.Resource == fwk.WildCard {
		maps.Copy(found, r.all)
		return found
	}
	for profile, list := range q.hints {
		for i, h := range list {
			if len(r.byPlugin[h.Plugin]) == 0 || !Matches(h.Event, e.event) {
				continue
			}
			if h.Among != nil {
				if names := among(q, hintKey{profile, i}, h, e); names != nil && names.Len() == 0 {
					continue
				}
			}
			for uid, p := range r.byPlugin[h.Plugin] {
				if p.Pod().Spec.SchedulerName == profile {
					found[uid] = p
				}
			}
		}
	}
	return found
}

// attempted is what brings pods back to the queue that no node was found for.
func attempted() fwk.ClusterEvent { return Wildcard("ScheduleAttemptFailure") }

// move puts a pod where a verdict on an event has it.
func (q *Queue) move(ctx context.Context, p *Pod, v verdict, by fwk.ClusterEvent) {
	switch {
	case v == stay:
		q.toUnschedulable(p, by)
	case v == retryNow || !q.expiration(p).After(q.now()):
		q.toActive(ctx, p, by)
	default:
		q.toBackoff(p, by)
	}
}

// toActive has a pod be attempted, unless a plugin keeps it away.
func (q *Queue) toActive(ctx context.Context, p *Pod, by fwk.ClusterEvent) {
	was := p.where
	leave(q, p)
	if !q.enqueue(ctx, p) {
		if was == inUnschedulable {
			by = nothing()
		}
		q.toUnschedulable(p, by)
		return
	}
	q.nominator.next(p)
	enter(q, p, inActive, by)
	heap.Push(&q.front.active, p)
	q.ready.Signal()
}

func (q *Queue) toBackoff(p *Pod, by fwk.ClusterEvent) {
	leave(q, p)
	p.expires = q.expiration(p)
	wakeUp(q)
	if p.tries.errors > 0 {
		enter(q, p, inErrorBackoff, by)
		heap.Push(&q.errorBackoff, p)
		return
	}
	enter(q, p, inBackoff, by)
	heap.Push(&q.backoff, p)
	q.ready.Signal()
}

func (q *Queue) toUnschedulable(p *Pod, by fwk.ClusterEvent) {
	if p.where == inUnschedulable {
		return
	}
	leave(q, p)
	enter(q, p, inUnschedulable, by)
	q.unschedulable.add(p)
}

// nothing is the event of a pod that is taken away from where it is and put back.
func nothing() fwk.ClusterEvent { return fwk.ClusterEvent{} }

// enter has a pod be at a place, to which an event has brought it.
func enter(q *Queue, p *Pod, where place, by fwk.ClusterEvent) {
	p.where = where
	q.pods[p.Pod().UID] = p
	if q.metrics != nil && by != nothing() {
		q.metrics.Incoming(where.String(), by.Label())
	}
}

// leave takes a pod away from where it is.
func leave(q *Queue, p *Pod) {
	switch p.where {
	case inActive:
		heap.Remove(&q.front.active, p.index)
	case inAside:
		q.front.remove(p)
	case inBackoff:
		heap.Remove(&q.backoff, p.index)
	case inErrorBackoff:
		heap.Remove(&q.errorBackoff, p.index)
	case inUnschedulable:
		q.unschedulable.remove(p)
	case nowhere:
	}
	p.where = nowhere
}

// fix has a pod be at its place again that has changed.
func fix(q *Queue, p *Pod) {
	switch p.where {
	case inActive:
		heap.Fix(&q.front.active, p.index)
	case inAside:
		heap.Fix(q.front.aside[p.Pod().Namespace], p.index)
	case inBackoff:
		heap.Fix(&q.backoff, p.index)
	case inErrorBackoff:
		heap.Fix(&q.errorBackoff, p.index)
	case inUnschedulable, nowhere:
	}
}

// enqueue asks the plugins whether a pod may be attempted at all.
func (q *Queue) enqueue(ctx context.Context, p *Pod) bool {
	p.gating, p.gatingEvents = "", nil
	pod := p.Pod()
	for _, plugin := range q.preEnqueue[pod.Spec.SchedulerName] {
		status := preEnqueue(ctx, q.log, plugin, pod)
		if status.IsSuccess() {
			continue
		}
		p.gating = plugin.Name()
		for _, h := range q.hints[pod.Spec.SchedulerName] {
			if h.Plugin == p.gating {
				p.gatingEvents = append(p.gatingEvents, h.Event)
			}
		}
		if status.IsError() {
			q.log.Error("plugin cannot tell whether a pod may be scheduled", "plugin", p.gating, "pod", klog.KObj(pod), "error", status.AsError())
		}
		return false
	}
	return true
}

// expiration is when a pod's backoff ends: each time it is twice as long.
func (q *Queue) expiration(p *Pod) time.Time {
	count := p.tries.rejected
	if p.tries.errors > 0 {
		count = p.tries.errors
	}
	if count == 0 {
		return time.Time{}
	}
	d := q.first
	for i := 1; i < count && d < q.last; i++ {
		d *= 2
	}
	return p.timestamp.Add(min(d, q.last)).Truncate(window)
}

func wakeUp(q *Queue) {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// release has pods be attempted whose backoff is over, and says when the next one's is.
func (q *Queue) release(ctx context.Context) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := time.Hour
	for _, h := range []*pods{&q.backoff, &q.errorBackoff} {
		for h.Len() > 0 {
			p := h.list[0]
			if left := p.expires.Sub(q.now()); left > 0 {
				next = min(next, left)
				break
			}
			q.toActive(ctx, p, Wildcard("BackoffComplete"))
		}
	}
	return next
}

// refresh has pods be attempted that have waited for a change for too long, and says when to look again.
func (q *Queue) refresh(ctx context.Context) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := staleAfter
	for _, p := range q.unschedulable.all {
		if p.gating != "" {
			continue
		}
		if left := p.timestamp.Add(staleAfter).Sub(q.now()); left > 0 {
			next = min(next, left)
			continue
		}
		q.move(ctx, p, retry, Wildcard("UnschedulableTimeout"))
	}
	return next
}

// Counts are how many pods are where.
func (q *Queue) Counts() (active, backoff, unschedulable, gated int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.unschedulable.all {
		if p.gating != "" {
			gated++
		}
	}
	return q.front.len(), q.backoff.Len() + q.errorBackoff.Len(), len(q.unschedulable.all) - gated, gated
}

// preEnqueue asks a plugin whether a pod may be scheduled. One that panics keeps the pod back, and nothing else.
func preEnqueue(ctx context.Context, log *slog.Logger, plugin fwk.PreEnqueuePlugin, pod *corev1.Pod) (status *fwk.Status) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("plugin panics before a pod is queued", "plugin", plugin.Name(), "pod", klog.KObj(pod), "error", p, "stack", string(debug.Stack()))
			status = fwk.AsStatus(fmt.Errorf("panic: %v", p))
		}
	}()
	return plugin.PreEnqueue(ctx, pod)
}
