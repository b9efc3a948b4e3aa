// Package apiserver writes events to the API server, as the recorders of client-go do: an event that repeats is counted
// there, similar ones become one, and who has too much to say of one object is not heard.
package apiserver

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"

	"github.com/berth-node/berth/agent/event"
)

// Component is whose the events are. They are what kubelet's would be, by reason and message, and people, tests and
// monitoring ask for them by kubelet's name ("source=kubelet" is a field selector of events).
const Component = "kubelet"

const defaultQueue = 1000

// Client is the API server. Its errors are those of the server, as k8s.io/apimachinery/pkg/api/errors tells them apart.
type Client interface {
	Create(
		ctx context.Context, res schema.GroupVersionResource, o interface {
			metav1.Object
			runtime.Object
		}, into runtime.Object, sub ...string,
	) error
	Patch(
		ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
		into runtime.Object, sub ...string,
	) error
}

// Config says who reports, and how much. Client and Host are required.
type Config struct {
	Client Client
	Host   string // the node's name
	QPS    int    // events a second in the long run; 0: all
	Burst  int    // and at once
	Queue  int    // events that wait, of which the oldest are dropped; 0: 1000
	// Calm is closed when nobody has anything to say to the server that matters more than an event, which waits for
	// that, though not for long; nil: nobody ever has.
	Calm func() <-chan struct{}
	Log  *slog.Logger
}

// Sink is the [event.Sink] of the API server. It is safe for concurrent use.
type Sink struct {
	cfg  Config
	wake chan struct{}

	mu         sync.Mutex
	correlator *record.EventCorrelator
	waiting    map[types.NamespacedName]*message
	order      []*message // the oldest first
	named      int64      // the time in the name given last

	sent, dropped, spam, refused atomic.Int64
}

// message is the latest of an event that the server does not have yet.
type message struct {
	key   types.NamespacedName
	event *corev1.Event
	patch []byte // nil: the server has none of this name
	since time.Time
}

// New returns a Sink that sends nothing before [Sink.Run].
func New(c Config) *Sink {
	c.Queue = cmp.Or(max(c.Queue, 0), defaultQueue)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Sink{
		cfg: c, wake: make(chan struct{}, 1), waiting: map[types.NamespacedName]*message{},
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
	}
}

// Put has an event sent.
func (s *Sink) Put(of event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// What the correlator remembers is what it has said, not what the server has answered: of events that wait, the
	// next is counted on the last.
	said, err := s.correlator.EventCorrelate(s.object(of))
	if err != nil || said.Skip || said.Event == nil {
		s.spam.Add(1)
		return
	}
	m := &message{
		key: types.NamespacedName{Namespace: said.Event.Namespace, Name: said.Event.Name}, event: said.Event, since: time.Now(),
	}
	if said.Event.Count > 1 {
		m.patch = said.Patch
	}
	s.add(m)
}

// add has a message wait, in the place of what waits of the same event.
func (s *Sink) add(m *message) {
	if before := s.waiting[m.key]; before != nil {
		before.event = m.event
		if before.patch != nil {
			before.patch = m.patch
		}
		return
	}
	s.waiting[m.key] = m
	s.order = append(s.order, m)
	if len(s.order) > s.cfg.Queue {
		s.pop()
		s.dropped.Add(1)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// object is an event as the API has it.
func (s *Sink) object(of event.Event) *corev1.Event {
	at := metav1.NewTime(of.Time)
	s.named = max(of.Time.UnixNano(), s.named+1) // two of one object may have happened at once
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      util.GenerateEventName(of.About.Name, s.named),
			Namespace: cmp.Or(of.About.Namespace, metav1.NamespaceDefault), Annotations: of.Annotations,
		},
		InvolvedObject: of.About, Type: of.Type, Reason: of.Reason, Message: of.Message, Count: 1,
		FirstTimestamp: at, LastTimestamp: at, Source: corev1.EventSource{Component: Component, Host: s.cfg.Host},
		ReportingController: Component, ReportingInstance: s.cfg.Host,
	}
}

// next takes the oldest that waits.
func (s *Sink) next() *message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pop()
}

// yields is how long the oldest that waits still gives way to what matters more. Where too many wait it does not.
func (s *Sink) yields() (d time.Duration, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == 0 {
		return 0, false
	}
	if s.cfg.Calm == nil || len(s.order) > s.cfg.Queue/2 {
		return 0, true
	}
	return time.Until(s.order[0].since.Add(mostYield)), true
}

func (s *Sink) pop() *message {
	m := s.order[0]
	s.order[0] = nil
	s.order = s.order[1:]
	delete(s.waiting, m.key)
	return m
}

// Counts are what has become of events.
type Counts struct {
	Sent    int64 // written at the server
	Dropped int64 // too many waited
	Spam    int64 // too many of one object
	Refused int64 // by the server
}

// Counts returns what has become of events so far.
func (s *Sink) Counts() Counts {
	return Counts{Sent: s.sent.Load(), Dropped: s.dropped.Load(), Spam: s.spam.Load(), Refused: s.refused.Load()}
}

// Pending is how many events wait.
func (s *Sink) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}
