// Package note has events tell the present cause. A recorder of client-go takes events for one that differ in nothing
// but their text, and shows the first text for minutes. With this one a new text begins a new event.
package note

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/reference"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/berth-node/berth/control/slots"
)

const (
	// most is of how many series is known what was said last, and burst and every how often a series may begin anew:
	// client-go's own numbers for events of one object.
	most  = 4096
	burst = 25
	every = 5 * time.Minute
	// atOnce is how many events are written at the same time.
	atOnce = 8
)

// mark stands between the version of an object and the number of its series, in what goes through the broadcaster.
// [Sink] takes it out again; versions never have it.
const mark = "/"

// Recorder records events by another recorder, and begins a new series with each new text.
type Recorder struct {
	to     events.EventRecorderLogger
	scheme *runtime.Scheme
	said   *said
}

var _ events.EventRecorderLogger = (*Recorder)(nil)

// NewRecorder makes a recorder by one whose broadcaster writes to a [Sink].
func NewRecorder(to events.EventRecorderLogger, scheme *runtime.Scheme) *Recorder {
	return &Recorder{to, scheme, &said{all: lru.New(most)}}
}

// WithLogger implements [events.EventRecorderLogger].
func (r *Recorder) WithLogger(log klog.Logger) events.EventRecorderLogger {
	return &Recorder{r.to.WithLogger(log), r.scheme, r.said}
}

// Eventf implements [events.EventRecorderLogger].
func (r *Recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	ref, err := reference.GetReference(r.scheme, regarding)
	if err != nil || ref.UID == "" {
		r.to.Eventf(regarding, related, kind, reason, action, note, args...) // it says what is wrong
		return
	}
	text := fmt.Sprintf(note, args...)
	own := *ref
	own.ResourceVersion = r.said.series(series{ref.UID, kind, reason, action}, ref.ResourceVersion, text)
	r.to.Eventf(&own, related, kind, reason, action, "%s", text)
}

// series is what client-go takes for one event.
type series struct {
	uid                  types.UID
	kind, reason, action string
}

// said is what was said last in each series.
type said struct {
	mu  sync.Mutex
	all *lru.Cache
}

type last struct {
	text    string
	version string // of the object when the series began
	number  int
	limit   flowcontrol.PassiveRateLimiter
}

// series is the version that is told of an object: the same one as long as the same is said.
func (s *said) series(key series, version, text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l *last
	if had, known := s.all.Get(key); known {
		l, _ = had.(*last)
	}
	switch {
	case l == nil:
		// One that was forgotten is not to go on where it began: its number is one that it cannot have had.
		l = &last{text, version, int(time.Now().UnixNano()), flowcontrol.NewTokenBucketPassiveRateLimiter(float32(1/every.Seconds()), burst)}
		s.all.Add(key, l)
	case l.text != text && l.limit.TryAccept():
		l.text, l.version = text, version
		l.number++
	}
	return l.version + mark + strconv.Itoa(l.number)
}

// Sink writes events by another sink, without what a [Recorder] tells their series apart by.
type Sink struct {
	to    events.EventSink
	turns *slots.Slots
}

var _ events.EventSink = (*Sink)(nil)

// NewSink makes a sink. The broadcaster begins with each event at once, so that the sink has them take turns.
func NewSink(to events.EventSink) *Sink { return &Sink{to, slots.New(atOnce)} }

// Create implements [events.EventSink].
func (s *Sink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.write(ctx, e, func() (*eventsv1.Event, error) { return s.to.Create(ctx, plain(e)) })
}

// Update implements [events.EventSink].
func (s *Sink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.write(ctx, e, func() (*eventsv1.Event, error) { return s.to.Update(ctx, plain(e)) })
}

// Patch implements [events.EventSink].
func (s *Sink) Patch(ctx context.Context, e *eventsv1.Event, data []byte) (*eventsv1.Event, error) {
	return s.write(ctx, e, func() (*eventsv1.Event, error) { return s.to.Patch(ctx, plain(e), data) })
}

func (s *Sink) write(ctx context.Context, e *eventsv1.Event, do func() (*eventsv1.Event, error)) (*eventsv1.Event, error) {
	done, err := s.turns.Take(ctx, e.Namespace)
	if err != nil {
		return nil, err
	}
	defer done()
	return do()
}

func plain(e *eventsv1.Event) *eventsv1.Event {
	version, _, marked := strings.Cut(e.Regarding.ResourceVersion, mark)
	if !marked {
		return e
	}
	c := *e
	c.Regarding.ResourceVersion = version
	return &c
}
