package pod

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/plan"
)

// Span is one step of the start of a pod, with the steps inside it.
type Span struct {
	Name     string            `json:"name"`
	Start    time.Time         `json:"start"`
	Duration time.Duration     `json:"duration"` // nanoseconds
	Error    string            `json:"error,omitempty"`
	Attrs    map[string]string `json:"attrs,omitempty"`
	Children []*Span           `json:"children,omitempty"`
}

// Timing returns what the last start of the pod was spent on; nil when it was not started by this process.
func (m *Manager) Timing(uid types.UID) *Span { return m.node.traces.tree(uid) }

// maxSpans bounds what is kept of one start: one that pulls for minutes must not fill the memory.
const maxSpans = 500

const rootSpan = "pod"

const seenAnnotation = "kubernetes.io/config.seen"

// traces keeps the spans of the last start of each pod. It hears of all spans of the process as an OpenTelemetry
// processor and takes those whose trace began with a pod's start.
type traces struct {
	mu    sync.Mutex
	byID  map[trace.TraceID]*podTrace
	byUID map[types.UID]trace.TraceID
}

// podTrace is one start.
type podTrace struct {
	root  Span // without an end while it goes on
	id    trace.SpanID
	ended []endedSpan
}

// endedSpan is what is kept of a span; the SDK's own holds much more.
type endedSpan struct {
	Span
	id, parent trace.SpanID
}

var _ sdktrace.SpanProcessor = (*traces)(nil)

func newTraces() *traces {
	return &traces{byID: map[trace.TraceID]*podTrace{}, byUID: map[types.UID]trace.TraceID{}}
}

// OnStart is part of sdktrace.SpanProcessor.
func (t *traces) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd keeps the span if it is part of a pod's start.
func (t *traces) OnEnd(s sdktrace.ReadOnlySpan) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.byID[s.SpanContext().TraceID()]
	switch {
	case !ok:
	case s.SpanContext().SpanID() == p.id:
		p.root = newSpan(s)
	case len(p.ended) < maxSpans:
		p.ended = append(p.ended, endedSpan{newSpan(s), s.SpanContext().SpanID(), s.Parent().SpanID()})
	}
}

// Shutdown is part of sdktrace.SpanProcessor.
func (t *traces) Shutdown(context.Context) error { return nil }

// ForceFlush is part of sdktrace.SpanProcessor.
func (t *traces) ForceFlush(context.Context) error { return nil }

func (t *traces) begin(uid types.UID, root trace.Span, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, t.byUID[uid])
	c := root.SpanContext()
	t.byUID[uid], t.byID[c.TraceID()] = c.TraceID(), &podTrace{root: Span{Name: rootSpan, Start: at}, id: c.SpanID()}
}

func (t *traces) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, t.byUID[uid])
	delete(t.byUID, uid)
}

// tree puts the spans into each other. Of a start that goes on it has what is over, and how long it has been.
func (t *traces) tree(uid types.UID) *Span {
	t.mu.Lock()
	p, ok := t.byID[t.byUID[uid]]
	if !ok {
		t.mu.Unlock()
		return nil
	}
	root, list := p.root, slices.Clone(p.ended)
	t.mu.Unlock()
	if root.Duration == 0 {
		root.Duration = time.Since(root.Start)
	}
	slices.SortStableFunc(list, func(a, b endedSpan) int { return a.Start.Compare(b.Start) })
	nodes := map[trace.SpanID]*Span{}
	for i := range list {
		nodes[list[i].id] = &list[i].Span
	}
	for i := range list {
		parent := nodes[list[i].parent]
		if parent == nil {
			parent = &root // its parent, or that one's, has not ended
		}
		parent.Children = append(parent.Children, &list[i].Span)
	}
	return &root
}

func newSpan(s sdktrace.ReadOnlySpan) Span {
	out := Span{Name: s.Name(), Start: s.StartTime(), Duration: s.EndTime().Sub(s.StartTime())}
	for _, a := range s.Attributes() {
		if out.Attrs == nil {
			out.Attrs = map[string]string{}
		}
		out.Attrs[string(a.Key)] = a.Value.String()
	}
	if s.Status().Code == codes.Error {
		out.Error = s.Status().Description
	}
	return out
}

// startTrace follows the pod's start.
type startTrace struct {
	worker *worker
	root   trace.Span // nil: it has started, or not begun to
	began  time.Time
}

// startSpan begins a span inside that of ctx; where there is none, none is begun.
func startSpan(ctx context.Context, name string) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/pod").Start(ctx, name)
}

func endSpan(s trace.Span, err error) {
	if err != nil {
		s.SetStatus(codes.Error, err.Error())
	}
	s.End()
}

// span is that of a step.
func (t *startTrace) stepSpan(ctx context.Context, s plan.Step) (context.Context, trace.Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, trace.SpanFromContext(ctx)
	}
	ctx, span := startSpan(ctx, string(s.Kind))
	if s.Container != "" {
		span.SetAttributes(attribute.String("container", s.Container))
	}
	return ctx, span
}

// beginTrace begins the trace of the pod's start, at the time its manifest was seen when that is known.
func (t *startTrace) beginTrace() {
	w := t.worker
	began := time.Now()
	if seen, err := time.Parse(time.RFC3339Nano, w.pod.Annotations[seenAnnotation]); err == nil && began.Sub(seen) < time.Minute {
		began = seen
	}
	_, span := w.node.cfg.TracerProvider.Tracer("berth/pod").Start(context.Background(), rootSpan, trace.WithTimestamp(began), trace.WithNewRoot(),
		trace.WithAttributes(attribute.String("pod", w.pod.Namespace+"/"+w.pod.Name)))
	w.node.traces.begin(w.uid, span, began)
	t.root, t.began = span, began
}

// traceStart begins the trace when the pod's start begins, and ends it when each of its containers runs or has run.
func (t *startTrace) traceStart(d *plan.Decision) {
	w := t.worker
	if t.root == nil {
		if len(d.Steps) > 0 && w.fate.end == nil && w.shown.last == nil && w.observer.seen.Sandbox() == nil {
			t.beginTrace()
		}
		return
	}
	if len(d.Steps)+len(w.work.tasks) > 0 {
		return
	}
	for i := range w.pod.Spec.Containers {
		c := w.observer.seen.Latest(w.pod.Spec.Containers[i].Name)
		if c == nil || c.GetState() == plan.Created {
			return
		}
	}
	t.endTrace()
	if w.node.cfg.Observers.Work != nil {
		w.node.cfg.Observers.Work.Started(time.Since(t.began))
	}
}

func (t *startTrace) endTrace() {
	if t.root == nil {
		return
	}
	t.root.End()
	t.root = nil
}
