package pod

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/admission"
	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/agent/pod/spec"
)

// worker runs one pod. One goroutine has all of its state: it reads the mailbox, plans, begins the steps of the plan,
// and publishes the status. A step runs in a goroutine of its own, because a pull or a hook can take minutes, with
// copies of what it needs; what it came to is applied by the worker.
//
//	mailbox, results, timer ─> look at the runtime ─> plan ─> begin steps ─> publish ─> wait
type worker struct {
	node    *node
	uid     types.UID
	mail    *mailbox
	log     *slog.Logger
	share   *admission.Share // what it was admitted with
	managed managed
	told    reports

	// What follows belongs to the goroutine of run.
	pod      *corev1.Pod
	fate     fate
	observer observer
	place    place
	tries    tries
	probes   map[string]plan.ProbeResults
	prober   *prober
	size     sizing
	work     work
	shown    publisher
	start    startTrace
}

// managed is what the manager knows of a worker.
type managed struct {
	leaving   bool // it was told to end
	grace     time.Duration
	preempted bool // it was told to end for another pod
	gone      bool // it has ended because nothing is left of the pod
}

// reports are what others may ask of a worker at any time.
type reports struct {
	deferred atomic.Bool   // its resize is deferred
	over     atomic.Bool   // nothing of it runs, and what it does not need was given back
	end      chan struct{} // closed when it is over, or when there is no worker any more
	once     sync.Once     // closes it
	// Closed when nothing of it runs or will, though it may have files still, or when it is over.
	quiet        chan struct{}
	hushed       sync.Once                    // closes that
	evictionDone atomic.Pointer[doneEviction] // nil: it was not evicted, or has not come to its end
	evicted      atomic.Pointer[Eviction]     // as its record has it; nil: it was not told, or is to end for good
}

// fate is whether the pod is to end, and as what.
type fate struct {
	hidden  bool              // what is left of a pod of which nothing more is known: not published
	final   *corev1.PodStatus // in which an API server has the pod that takes no phase back; nil: in none that is final
	end     *plan.Ending      // nil: it is to run
	evicted *Eviction
}

// place is what is known of what the pod has beside its containers.
type place struct {
	env      *environment.Environment // nil: not prepared
	renew    bool                     // volumes may not have what their objects have
	finished bool                     // what a pod that is over does not need was given back
	leaves   bool                     // it is being removed
	torn     bool                     // nothing is left
}

// tries is what steps have come to.
type tries struct {
	images  map[string]spec.Image   // by container name: for its next start
	failed  map[string]plan.Failure // by key of the step
	refused map[string]plan.Failure // by container ID: those that could not be started
	hooked  map[string]bool         // containers whose preStop hook has begun, by ID
}

// work is what steps run.
type work struct {
	tasks   map[string]task // by key
	results chan result
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
	log := n.cfg.Log.With(logAttrs(pod)...)
	mail := newMailbox()
	w := &worker{
		node: n, uid: pod.UID, mail: mail, log: log, share: admission.ShareOf(pod),
		pod: pod, fate: fate{hidden: pod.Name == ""},
		observer: observer{runtime: n.cfg.Runtime, uid: pod.UID, stale: true, said: map[string]string{}},
		place:    place{renew: environment.HasContent(pod)},
		tries: tries{
			images: map[string]spec.Image{}, failed: map[string]plan.Failure{},
			refused: map[string]plan.Failure{}, hooked: map[string]bool{},
		},
		probes: map[string]plan.ProbeResults{}, prober: newProber(n, pod.UID, mail, log),
		work: work{tasks: map[string]task{}, results: make(chan result)},
	}
	w.told.end, w.told.quiet = make(chan struct{}), make(chan struct{})
	w.size = sizing{worker: w, resized: &plan.Resized{}, added: &added{}}
	w.shown, w.start = publisher{worker: w}, startTrace{worker: w}
	return w
}

// run works until nothing is left of the pod, or until ctx ends; then the pod stays as it is. It reports whether the
// pod is gone.
func (w *worker) run(ctx context.Context) (gone bool) {
	defer w.settle()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		w.read(ctx)
		wake := time.Now().Add(plan.RetryInitial)
		if w.look(ctx) {
			w.size.recall()
			w.size.allocate()
			w.pod, w.size.want = w.size.added.addTo(w.pod), w.size.added.addTo(w.size.want)
			w.probe(ctx)
			d := plan.Decide(w.view())
			if d.Gone {
				return true
			}
			if d.Expired {
				w.expire()
				continue
			}
			w.start.traceStart(&d)
			for _, s := range d.Steps {
				w.begin(ctx, s)
			}
			w.tellQuiet()
			if !w.place.leaves {
				w.shown.publish(&d) // while the steps are being taken
			}
			// What is left of a pod while it is being removed is nobody's business.
			_, removed := w.work.tasks[string(plan.Teardown)]
			w.place.leaves = w.place.leaves || removed
			wake = d.Wake
		}
		w.wait(ctx, timer, wake)
	}
	return false
}

// wait returns when there is something new, and takes what steps have come to by then: each look at the runtime, plan
// and status is for all of it.
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
	case r := <-w.work.results:
		w.take(r)
	}
	for {
		select {
		case r := <-w.work.results:
			w.take(r)
		default:
			return
		}
	}
}

// settle ends what the worker has begun and waits for its end.
func (w *worker) settle() {
	w.start.endTrace()
	w.prober.end()
	for _, t := range w.work.tasks {
		t.cancel()
	}
	for len(w.work.tasks) > 0 {
		r := <-w.work.results
		delete(w.work.tasks, r.step.Key())
	}
}

// read takes what is in the mailbox.
func (w *worker) read(ctx context.Context) {
	select {
	case <-w.mail.wake: // by what is read now
	default:
	}
	if o := w.mail.order.Swap(nil); o != nil {
		if o.pod != nil && w.fate.end == nil {
			w.size.accept(o.pod)
			if w.fate.finalize(o.pod, w.shown.last); w.fate.final != nil {
				w.work.cutOff(false)
			}
		}
		if o.end != nil {
			w.stop(*o.end)
		}
	}
	if e := w.mail.evict.Swap(nil); e != nil && (w.fate.end == nil || w.fate.end.Keep) {
		w.evict(e)
	}
	if events := w.mail.events.Swap(nil); events != nil {
		for _, e := range *events {
			w.observer.stale = w.observer.stale || w.observer.seen == nil || w.observer.seen.Tells(e)
		}
	}
	if all := w.mail.probes.Load(); all != nil {
		w.probes = *all
	}
	if a := w.mail.added.Swap(nil); a != nil {
		w.size.added = a
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

// begin runs a step.
func (w *worker) begin(ctx context.Context, s plan.Step) {
	do := acts{w}.of(s.Kind)(s)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, workerKey{}, ctx))
	ctx = withLogAttrs(ctx, w.pod, s.Container)
	w.work.tasks[s.Key()] = task{s, cancel}
	w.log.Debug("step begins", s.LogAttrs()...)
	starting, began := w.start.root != nil, time.Now()
	if starting {
		ctx = trace.ContextWithSpan(ctx, w.start.root)
	}
	go func() {
		ctx, span := w.start.stepSpan(ctx, s)
		apply, err := do(ctx)
		if err != nil && errors.Is(ctx.Err(), context.Canceled) {
			err = errors.Join(context.Canceled, err) // a runtime says so by a status of gRPC, or as if it had failed
		}
		endSpan(span, err)
		if err == nil { // else it is told where that is dealt with
			w.log.Debug("step is done", append(s.LogAttrs(), "took", time.Since(began))...)
		}
		if w.node.cfg.Observers.Work != nil {
			w.node.cfg.Observers.Work.Stepped(starting, time.Since(began))
		}
		cancel()
		w.work.results <- result{s, err, apply}
	}()
}

// take applies what a step came to.
func (w *worker) take(r result) {
	key := r.step.Key()
	delete(w.work.tasks, key)
	w.observer.stale = true
	if r.apply != nil {
		r.apply()
	}
	if r.err == nil {
		delete(w.tries.failed, key)
		return
	}
	w.fail(r.step, r.err)
}
