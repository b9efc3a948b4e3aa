// Package queue is the pods that wait for a node: those that are next, those whose time has not come yet, and those for
// which something has to change first.
package queue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/metrics"
)

// staleAfter is how long a pod waits for something to change before it is attempted again whatever there was.
const staleAfter = 5 * time.Minute

// window is within which two ends of a backoff are the same time, so that the pod of more priority is first.
const window = time.Second

// Options are what a queue is made of.
type Options struct {
	Less       fwk.LessFunc
	PreEnqueue map[string][]fwk.PreEnqueuePlugin // by profile
	Hints      map[string][]Hint                 // by profile
	Nominator  *Nominator
	// FirstBackoff and LastBackoff are for how long a pod that was rejected is left alone, at first and at most.
	FirstBackoff, LastBackoff time.Duration
	Now                       func() time.Time
	// Metrics hear of pods that come to a part of the queue; nil: nobody does.
	Metrics *metrics.Metrics
	Log     *slog.Logger
}

// Queue is the pods that wait.
type Queue struct {
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics.Metrics

	mu            sync.Mutex
	ready         *sync.Cond
	closed        bool
	pods          map[types.UID]*Pod  // wherever they are
	out           map[types.UID]*bool // that are attempted, and whether they are wanted no more
	front         front
	backoff       pods
	errorBackoff  pods
	unschedulable rejected
	flights       *flights
	nominator     *Nominator
	interests     map[interest]bool
	wake          chan struct{}

	preEnqueue  map[string][]fwk.PreEnqueuePlugin
	hints       map[string][]Hint
	first, last time.Duration
}

// New makes a queue.
func New(o Options) *Queue {
	if o.Now == nil {
		o.Now = time.Now
	}
	q := &Queue{
		log: o.Log, now: o.Now, metrics: o.Metrics, pods: map[types.UID]*Pod{}, out: map[types.UID]*bool{}, flights: newFlights(), front: newFront(), nominator: o.Nominator,
		unschedulable: newRejected(), interests: map[interest]bool{}, wake: make(chan struct{}, 1),
		preEnqueue: o.PreEnqueue, hints: o.Hints, first: o.FirstBackoff, last: o.LastBackoff,
	}
	q.ready = sync.NewCond(&q.mu)
	q.front.active.less = func(a, b *Pod) bool { return o.Less(a, b) }
	sooner := func(a, b *Pod) bool {
		if !a.expires.Equal(b.expires) {
			return a.expires.Before(b.expires)
		}
		return o.Less(a, b)
	}
	q.backoff.less, q.errorBackoff.less = sooner, sooner
	return q
}

// Run has pods come back when their time has come, until ctx ends. Pop returns nothing any more then.
func (q *Queue) Run(ctx context.Context) {
	defer q.close()
	stale := time.NewTimer(staleAfter)
	defer stale.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	for {
		due.Reset(q.release(ctx))
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-due.C:
		case <-stale.C:
			stale.Reset(q.refresh(ctx))
		}
	}
}

func (q *Queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Broadcast()
}

// Add has a pod wait that the API tells of.
func (q *Queue) Add(ctx context.Context, pod *corev1.Pod) {
	info, err := cluster.NewPodInfo(pod)
	if err != nil {
		q.log.Warn("affinity of a pod is not read", "pod", klog.KObj(pod), "error", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(ctx, info)
}

func (q *Queue) add(ctx context.Context, info *cluster.PodInfo) {
	uid := info.GetPod().UID
	if p := q.pods[uid]; p != nil || q.out[uid] != nil {
		if p != nil {
			p.info = info
			fix(q, p)
		}
		return
	}
	p := newPod(info, q.now())
	q.toActive(ctx, p, fwk.ClusterEvent{Resource: fwk.UnscheduledPod, ActionType: fwk.Add})
}

// Pop waits for the pod that is next, and hands it out. It is nil when the queue has ended.
func (q *Queue) Pop() *Pod {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return nil
		}
		// Who has nothing else to do need not wait for the end of a backoff, which is there so that others come first.
		// After errors it is there to spare the API server.
		p := q.front.next(q.now())
		if p == nil && q.backoff.Len() > 0 {
			p = q.backoff.first()
			q.metrics.Incoming("active", "PopFromBackoffQ")
		}
		if p != nil {
			leave(q, p)
			return q.handOut(p)
		}
		q.ready.Wait()
	}
}

// Done says that an attempt has come to where no plugin can reject the pod any more: what happens from now on does not
// matter to it.
func (q *Queue) Done(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flights.end(uid)
}

// Finish says that an attempt is over and the pod waits no more.
func (q *Queue) Finish(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flights.end(uid)
	delete(q.out, uid)
}

// GiveBack has a pod wait again whose attempt has failed: until something changes, if a plugin has rejected it; else it
// was an error, and it is attempted again when some time has passed. Info is the pod as the API has it now, room where
// others have just been ended for it.
func (q *Queue) GiveBack(ctx context.Context, p *Pod, info *cluster.PodInfo, room *fwk.NominatingInfo) {
	q.mu.Lock()
	defer q.mu.Unlock()
	uid := p.Pod().UID
	gone := q.out[uid]
	defer func() {
		q.flights.end(uid)
		delete(q.out, uid)
	}()
	if q.pods[uid] != nil || gone == nil || *gone {
		return
	}
	if room.Mode() == fwk.ModeOverride {
		// Not before it is known that the pod still waits: nobody would take it back from one that is gone.
		q.nominator.AddNominatedPod(klog.Logger{}, info, room)
	}
	p.info, p.timestamp = info, q.now()
	if len(p.unschedulable) == 0 && len(p.pending) == 0 {
		p.tries.errors++
		q.toBackoff(p, attempted())
		return
	}
	p.tries.errors = 0
	if len(p.unschedulable) > 0 {
		p.tries.rejected++
	}
	q.move(ctx, p, meanwhile(q, p), attempted())
}

// meanwhile is what has happened while a pod was attempted comes to.
func meanwhile(q *Queue, p *Pod) verdict {
	events, all := q.flights.since(p.Pod().UID)
	if !all {
		return retry
	}
	best, until := stay, time.Now().Add(asking)
	for _, r := range events {
		// Only who waits for something of its own can be wanted more than once more.
		if best == retry && len(p.pending) == 0 {
			break
		}
		if r.only != "" && r.only != p.Pod().UID {
			continue
		}
		if v := ask(q, p, &question{record: r, until: until}); v > best {
			best = v
		}
		if best == retryNow {
			break
		}
	}
	return best
}

// Happened tells of a change in the cluster that may make pods schedulable.
func (q *Queue) Happened(ctx context.Context, event fwk.ClusterEvent, before, after any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !wanted(q, event) {
		return
	}
	r := record{event: event, before: before, after: after}
	q.flights.add(r)
	e := newQuestion(r)
	for _, p := range q.unschedulable.concerned(q, e) {
		q.look(ctx, p, e)
	}
}

// look moves a pod that has waited for an event such as this one.
func (q *Queue) look(ctx context.Context, p *Pod, e *question) {
	if p.gating != "" {
		// Who keeps a pod away from the queue is asked again only when what it has registered for happens.
		if e.event.Resource == fwk.WildCard || freed(q, p, e) {
			q.toActive(ctx, p, e.event)
		}
		return
	}
	q.move(ctx, p, ask(q, p, e), e.event)
}

// Update has a pod that waits be as the API has it now.
func (q *Queue) Update(ctx context.Context, before, pod *corev1.Pod, events []fwk.ClusterEvent) {
	info, err := cluster.NewPodInfo(pod)
	if err != nil {
		q.log.Warn("affinity of a pod is not read", "pod", klog.KObj(pod), "error", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.out[pod.UID] != nil {
		for _, e := range events {
			q.flights.add(record{event: e, before: before, after: pod, only: pod.UID})
		}
		return
	}
	p := q.pods[pod.UID]
	if p == nil {
		q.add(ctx, info)
		return
	}
	q.nominator.told(p, info)
	p.info = info
	if p.where != inUnschedulable {
		fix(q, p)
		return
	}
	for _, e := range events {
		if q.look(ctx, p, newQuestion(record{event: e, before: before, after: pod})); p.where != inUnschedulable {
			return
		}
	}
}

// Delete has a pod wait no more: it is gone, or has a node.
func (q *Queue) Delete(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nominator.DeleteNominatedPodIfExists(pod)
	if p := q.pods[pod.UID]; p != nil {
		leave(q, p)
		delete(q.pods, pod.UID)
	}
	if gone := q.out[pod.UID]; gone != nil {
		*gone = true
	}
}

// Activate implements [fwk.PodActivator].
func (q *Queue) Activate(_ klog.Logger, all map[string]*corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range all {
		switch p := q.pods[pod.UID]; {
		case p != nil && p.where != inActive:
			q.toActive(context.Background(), p, Wildcard("ForceActivate"))
		case p == nil && q.flights.has(pod.UID):
			q.flights.add(record{event: Wildcard("ForceActivate"), only: pod.UID})
		}
	}
}
