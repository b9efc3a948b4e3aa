package pod

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
)

// worker runs one pod. One goroutine has all of its state: it reads the mailbox, plans, begins the steps of the plan, and publishes
// the status. A step runs in a goroutine of its own, because a pull or a hook can take minutes, with copies of what it needs; what
// it came to is applied by the worker.
//
//	mailbox, results, timer ─> look at the runtime ─> plan ─> begin steps ─> publish ─> wait
type worker struct {
	node  *node
	uid   types.UID
	mail  *mailbox
	log   *slog.Logger
	share *admission.Share // what it was admitted with

	// What follows belongs to the manager.
	leaving   bool // it was told to end
	preempted bool // it was told to end for another pod
	gone      bool // it has ended because nothing is left of the pod

	waitsForRoom atomic.Bool            // its resize is deferred
	over         atomic.Bool            // nothing of it runs, and what it does not need was given back
	lapsed       atomic.Pointer[lapsed] // nil: it was not evicted, or has not come to its end

	// What follows belongs to the goroutine of run.
	pod     *corev1.Pod
	hidden  bool // what is left of a pod of which nothing more is known: not published
	end     *plan.Ending
	evicted *Eviction

	observer observer
	seen     *plan.Observed
	stale    bool              // seen may not be what is
	said     map[string]string // termination messages by container ID

	site     *site // nil: not prepared
	finished bool
	torn     bool
	leaves   bool // it is being removed
	images   map[string]spec.Image
	failed   map[string]plan.Failure
	refused  map[string]plan.Failure
	hooked   map[string]bool // containers whose preStop hook has begun, by ID
	probes   map[string]plan.ProbeResults
	prober   *prober

	renew    bool                 // volumes may not have what their objects have
	want     *corev1.Pod          // with resources that pod has not been given yet; nil: it has what is wanted
	pending  *corev1.PodCondition // why not
	resized  *plan.Resized
	added    *added
	recalled bool // it is known what was given before the agent was restarted

	tasks   map[string]task // running steps by key
	results chan result

	last   *corev1.Pod               // as published
	waited map[string]status.Waiting // as planned last
	trace  trace.Span                // of the pod's start, until it has started
	began  time.Time                 // when that start did
}

// ReasonNotAnswering is the reason of a pod that the runtime cannot manage at the moment. It goes on as it was.
const ReasonNotAnswering = "NotAnswering"

// task is a step that runs.
type task struct {
	step   plan.Step
	cancel context.CancelFunc
}

// result is what a step came to.
type result struct {
	step  plan.Step
	err   error
	apply func() // nil: nothing to apply
}

// act does a step. It must not touch the worker; what it returns is run by the worker, also when there is an error.
type act func(ctx context.Context) (apply func(), err error)

func newWorker(n *node, pod *corev1.Pod) *worker {
	w := &worker{
		node: n, uid: pod.UID, mail: newMailbox(), share: admission.ShareOf(pod), pod: pod, hidden: pod.Name == "",
		log:      n.cfg.Log.With("pod", pod.Namespace+"/"+pod.Name, "uid", string(pod.UID)),
		observer: observer{runtime: n.cfg.Runtime, uid: pod.UID}, stale: true, said: map[string]string{},
		images: map[string]spec.Image{}, failed: map[string]plan.Failure{}, refused: map[string]plan.Failure{}, hooked: map[string]bool{},
		resized: &plan.Resized{}, added: &added{}, renew: hasContent(pod),
		probes: map[string]plan.ProbeResults{}, tasks: map[string]task{}, results: make(chan result),
	}
	w.prober = newProber(n, pod.UID, w.mail, w.log)
	return w
}

// run works until nothing is left of the pod, or until ctx ends; then the pod stays as it is. It reports whether the pod is gone.
func (w *worker) run(ctx context.Context) (gone bool) {
	defer w.settle()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		w.read(ctx)
		wake := time.Now().Add(plan.RetryInitial)
		if w.look(ctx) {
			w.recall()
			w.allocate()
			w.pod, w.want = w.added.adorn(w.pod), w.added.adorn(w.want)
			w.probe(ctx)
			d := plan.Decide(w.view())
			if d.Gone {
				return true
			}
			if d.Expired {
				w.expire()
				continue
			}
			w.traceStart(&d)
			for _, s := range d.Steps {
				w.begin(ctx, s)
			}
			if !w.leaves {
				w.publish(&d) // while the steps are being taken
			}
			// What is left of a pod while it is being removed is nobody's business.
			_, removed := w.tasks[string(plan.Teardown)]
			w.leaves = w.leaves || removed
			wake = d.Wake
		}
		w.wait(ctx, timer, wake)
	}
	return false
}

// wait returns when there is something new.
func (w *worker) wait(ctx context.Context, timer *time.Timer, wake time.Time) {
	var due <-chan time.Time
	if !wake.IsZero() {
		timer.Reset(max(time.Until(wake), 0))
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.mail.wake:
	case <-due:
	case r := <-w.results:
		w.take(r)
	}
}

// settle ends what the worker has begun and waits for its end.
func (w *worker) settle() {
	w.endTrace()
	w.prober.end()
	for _, t := range w.tasks {
		t.cancel()
	}
	for len(w.tasks) > 0 {
		r := <-w.results
		delete(w.tasks, r.step.Key())
	}
}

// read takes what is in the mailbox.
func (w *worker) read(ctx context.Context) {
	if o := w.mail.order.Swap(nil); o != nil {
		if o.pod != nil && w.end == nil {
			w.accept(o.pod)
		}
		if o.end != nil {
			w.stop(*o.end)
		}
	}
	if e := w.mail.evict.Swap(nil); e != nil && (w.end == nil || w.end.Keep) {
		w.evict(e)
	}
	if events := w.mail.events.Swap(nil); events != nil {
		for _, e := range *events {
			w.stale = w.stale || w.seen == nil || w.seen.Tells(e)
		}
	}
	if all := w.mail.probes.Load(); all != nil {
		w.probes = *all
	}
	if a := w.mail.added.Swap(nil); a != nil {
		w.added = a
	}
	if w.mail.object.Swap(false) {
		w.objectsChanged()
	}
	if named := w.mail.images.Swap(nil); named != nil {
		w.imagesNamed(*named)
	}
	if w.mail.look.Swap(false) {
		w.observer.list()
		w.check(ctx)
	}
}

// evict makes the pod end and stay known as one that the node has failed.
func (w *worker) evict(e *Eviction) {
	w.evicted = e
	w.stop(plan.Ending{Since: time.Now(), Grace: time.Duration(e.GraceSeconds) * time.Second, Keep: true})
}

// stop makes the pod end. What is being started is cut off; what is being ended is hurried when the new order is in more of a
// hurry.
func (w *worker) stop(e plan.Ending) {
	hurry := w.end == nil || e.Since.Add(e.Grace).Before(w.end.Since.Add(w.end.Grace))
	if w.end != nil {
		keep := e.Keep && w.end.Keep
		if !hurry {
			e = *w.end
		}
		e.Keep = keep
	}
	w.end = &e
	w.endTrace()
	if err := writeMark(w.node.cfg.RootDir, w.uid, w.mark()); err != nil {
		w.log.Warn("a restart of the agent may bring the pod back", "error", err)
	}
	for _, t := range w.tasks {
		if k := t.step.Kind; k == plan.Prepare || k == plan.Image || k == plan.Start || k == plan.Kill && hurry {
			t.cancel()
		}
	}
}

func (w *worker) mark() mark {
	m := mark{Since: w.end.Since, Grace: w.end.Grace}
	if w.end.Keep {
		m.Evicted = w.evicted
	}
	return m
}

// check looks at everything, and counts when events have not told of what there is.
func (w *worker) check(ctx context.Context) {
	w.stale = true
	if w.seen == nil || len(w.tasks) > 0 {
		return
	}
	before := w.seen
	now, err := w.observer.look(ctx)
	if err != nil {
		return // the look that follows tells
	}
	if !before.Same(now) && w.mail.events.Load() == nil {
		w.node.missed.Add(1)
		w.log.Warn("the runtime's events have not told of a change")
	}
	w.see(now)
}

// look brings what is seen up to date, and says whether it is.
func (w *worker) look(ctx context.Context) bool {
	if !w.stale {
		return true
	}
	now, err := w.observer.look(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("runtime does not tell what the pod does", "error", err)
		}
		return false
	}
	w.see(now)
	return true
}

func (w *worker) see(now *plan.Observed) {
	if now.Problem != "" && (w.seen == nil || w.seen.Problem == "") && !w.hidden {
		w.node.event(w.pod, corev1.EventTypeWarning, ReasonNotAnswering, "%s", now.Problem)
	}
	w.seen, w.stale = now, false
	said := map[string]string{}
	for _, list := range now.Containers {
		for i := range list {
			c := &list[i]
			if c.GetState() != plan.Exited {
				continue
			}
			text, known := w.said[c.GetId()]
			if !known {
				text = w.lastWords(c)
			}
			said[c.GetId()] = text
		}
	}
	w.said = said
	gone := func(id string, _ bool) bool { return now.Find(id) == nil }
	maps.DeleteFunc(w.hooked, gone)
	maps.DeleteFunc(w.refused, func(id string, _ plan.Failure) bool { return gone(id, true) })
}

func (w *worker) view() *plan.View {
	busy := make(map[string]plan.Step, len(w.tasks))
	for key, t := range w.tasks {
		busy[key] = t.step
	}
	return &plan.View{
		Pod: w.pod, Now: time.Now(), Seen: w.seen, Prepared: w.site != nil, Renew: w.renew, Finished: w.finished, Torn: w.torn,
		Deadline: w.deadline(), Busy: busy, Resized: *w.resized, Images: w.images, Failed: w.failed, Refused: w.refused, Probes: w.probes, End: w.end,
		Delays: plan.Delays{Initial: w.node.cfg.BackoffInitial, Max: w.node.cfg.BackoffMax, Reset: w.node.cfg.BackoffReset},
	}
}

// begin runs a step.
func (w *worker) begin(ctx context.Context, s plan.Step) {
	do := w.act(s)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, lifeKey{}, ctx))
	w.tasks[s.Key()] = task{s, cancel}
	starting, began := w.trace != nil, time.Now()
	if starting {
		ctx = trace.ContextWithSpan(ctx, w.trace)
	}
	go func() {
		ctx, span := w.span(ctx, s)
		apply, err := do(ctx)
		endSpan(span, err)
		if w.node.cfg.Work != nil {
			w.node.cfg.Work.Stepped(starting, time.Since(began))
		}
		cancel()
		w.results <- result{s, err, apply}
	}()
}

// take applies what a step came to.
func (w *worker) take(r result) {
	key := r.step.Key()
	delete(w.tasks, key)
	w.stale = true
	if r.apply != nil {
		r.apply()
	}
	if r.err == nil {
		delete(w.failed, key)
		return
	}
	w.fail(r.step, r.err)
}

// tellWaiting tells of back-offs that have begun.
func (w *worker) tellWaiting(d *plan.Decision) {
	for name, why := range d.Waiting {
		if w.waited[name] == why {
			continue
		}
		switch why.Reason {
		case "CrashLoopBackOff":
			w.node.containerEvent(w.pod, name, corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s", name, spec.PodName(w.pod))
		case plan.ReasonImagePullBackOff:
			c := spec.FindContainer(w.pod, name)
			w.node.containerEvent(w.pod, name, corev1.EventTypeNormal, "BackOff", "Back-off pulling image %q", c.Image)
			w.node.containerEvent(w.pod, name, corev1.EventTypeWarning, "Failed", "Error: %s", why.Reason)
		}
	}
	w.waited = d.Waiting
}

// publish tells what the pod does, when it is not what was told last.
func (w *worker) publish(d *plan.Decision) {
	if w.hidden {
		return
	}
	w.tellWaiting(d)
	starting := map[string]bool{}
	for _, list := range [][]corev1.Container{w.pod.Spec.InitContainers, w.pod.Spec.Containers} {
		for i := range list {
			if c := &list[i]; c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
				_, starting[c.Name] = w.tasks[plan.Step{Kind: plan.Start, Container: c.Name}.Key()]
			}
		}
	}
	in := status.Input{
		Pod: w.pod, Now: time.Now(), Runtime: w.node.runtimeName, HostIPs: w.node.nodeIPs(),
		Sandbox: w.seen.Sandbox(), Containers: w.seen.Statuses(), Messages: w.said,
		Waiting: d.Waiting, Starting: starting, Probes: w.probeStates(), Devices: w.node.resources.health(w.pod), Claims: claimStatuses(w.pod), Ended: d.Over,
	}
	if w.last != nil {
		in.Old = &w.last.Status
	}
	if w.seen.Problem != "" {
		in.Reason, in.Message = ReasonNotAnswering, w.seen.Problem
	}
	if e := w.evicted; e != nil {
		in.Failed, in.Reason, in.Message, in.Conditions = true, e.Reason, e.Message, e.Conditions
	}
	in.Conditions = slices.Concat(w.added.Conditions, in.Conditions, w.resizeConditions())
	if d.Restarting != nil {
		in.Conditions = append(in.Conditions, status.Condition(corev1.AllContainersRestarting, *d.Restarting, "", ""))
	}
	in.Resources, in.PodResources = w.acknowledgedResources(), w.pod.Spec.Resources
	if w.resized.Acting && w.resized.Pod != nil {
		in.PodResources = w.resized.Pod
	}
	pod := *w.pod
	if w.want != nil {
		pod = *w.want
	}
	pod.Status = status.Build(in)
	if w.end != nil && !w.end.Keep {
		seconds := int64(w.end.Grace / time.Second)
		pod.DeletionTimestamp = new(metav1.NewTime(w.end.Since.Add(w.end.Grace).Truncate(time.Second)))
		pod.DeletionGracePeriodSeconds = &seconds
	}
	if w.last != nil && w.last.ObjectMeta.Generation == pod.Generation && sameResources(w.last, &pod) && w.last.DeletionTimestamp.Equal(pod.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(&w.last.Status, &pod.Status) {
		return
	}
	w.last = &pod
	w.node.status.Put(&pod)
}

func (w *worker) probeStates() map[string]status.Probes {
	out := map[string]status.Probes{}
	for name := range w.seen.Containers {
		r := w.probes[w.seen.Latest(name).GetId()]
		out[name] = status.Probes{StartupOK: r.Startup == plan.ProbePassed, ReadinessOK: r.Readiness == plan.ProbePassed}
	}
	return out
}
