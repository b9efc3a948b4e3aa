package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-node/berth/agent/event"
)

var _ event.Sink = (*Sink)(nil)

// server has events, and fails calls as a test wants.
type server struct {
	t      *testing.T
	mu     sync.Mutex
	events map[types.NamespacedName]*corev1.Event
	calls  int
	fail   func(ctx context.Context) error // before a call is done
	lose   func() error                    // after it
}

func (s *server) call(ctx context.Context, do func() error) error {
	s.mu.Lock()
	fail, lose := s.fail, s.lose
	s.calls++
	s.mu.Unlock()
	if fail != nil {
		if err := fail(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := do()
	if lose != nil {
		if lost := lose(); lost != nil {
			return lost
		}
	}
	return err
}

// Create implements [Client].
func (s *server) Create(ctx context.Context, res schema.GroupVersionResource, o interface {
	metav1.Object
	runtime.Object
}, into runtime.Object, _ ...string,
) error {
	return s.call(ctx, func() error {
		e := o.(*corev1.Event).DeepCopy()
		key := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
		if s.events[key] != nil {
			return apierrors.NewAlreadyExists(res.GroupResource(), e.Name)
		}
		s.events[key] = e
		e.DeepCopyInto(into.(*corev1.Event))
		return nil
	})
}

// Patch implements [Client].
func (s *server) Patch(
	ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, _ types.PatchType, patch []byte, into runtime.Object, _ ...string,
) error {
	return s.call(ctx, func() error {
		old := s.events[key]
		if old == nil {
			return apierrors.NewNotFound(res.GroupResource(), key.Name)
		}
		before, err := json.Marshal(old)
		if err != nil {
			return err
		}
		after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Event{})
		if err != nil {
			s.t.Errorf("patch %s: %v", patch, err)
			return err
		}
		var e corev1.Event
		if err := json.Unmarshal(after, &e); err != nil {
			return err
		}
		s.events[key] = &e
		e.DeepCopyInto(into.(*corev1.Event))
		return nil
	})
}

func (s *server) set(fail func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// list is what the server has, by reason and message.
func (s *server) list() map[string]*corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]*corev1.Event{}
	for _, e := range s.events {
		out[e.Reason+" "+e.Message] = e
	}
	return out
}

// begin runs a Sink and a recorder that tells it.
func begin(t *testing.T, with func(*Config)) (*event.Recorder, *Sink, *server) {
	t.Helper()
	s := &server{t: t, events: map[types.NamespacedName]*corev1.Event{}}
	c := Config{Client: s, Host: "node", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if with != nil {
		with(&c)
	}
	sink := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		sink.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return event.NewRecorder("node", sink), sink, s
}

// pass has time go by, and what is due then be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"), ResourceVersion: "7"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, sink, s := begin(t, nil)
		for range 3 {
			r.Container(pod("a"), "main", corev1.EventTypeWarning, "BackOff", "again")
			pass(time.Second)
		}
		r.Node(corev1.EventTypeNormal, "Starting", "it starts")
		r.Annotated(pod("a"), map[string]string{"k": "v"}, corev1.EventTypeNormal, "Noted", "so")
		synctest.Wait()
		has := s.list()
		again := has["BackOff again"]
		if len(has) != 3 || again.Count != 3 || again.LastTimestamp.Sub(again.FirstTimestamp.Time) != 2*time.Second ||
			again.Source != (corev1.EventSource{Component: "kubelet", Host: "node"}) || again.InvolvedObject.FieldPath != "spec.containers{main}" ||
			again.InvolvedObject.UID != "a-uid" || again.Namespace != "ns" || again.Name != fmt.Sprintf("a.%x", again.FirstTimestamp.UnixNano()) {
			t.Errorf("the server has %v", has)
		}
		if e := has["Starting it starts"]; e.Namespace != "default" || e.InvolvedObject.Namespace != "" || e.InvolvedObject.UID != "node" {
			t.Errorf("of the node it has %v", e)
		}
		if e := has["Noted so"]; e.Annotations["k"] != "v" {
			t.Errorf("annotations %v", e.Annotations)
		}
		// The server drops events after an hour: one that comes again is made again.
		s.mu.Lock()
		clear(s.events)
		s.mu.Unlock()
		r.Container(pod("a"), "main", corev1.EventTypeWarning, "BackOff", "again")
		synctest.Wait()
		if e := s.list()["BackOff again"]; e == nil || e.Count != 4 {
			t.Errorf("made again: %v", e)
		}
		if c := sink.Counts(); c.Sent != 6 || c.Dropped+c.Spam+c.Refused != 0 {
			t.Errorf("counts %+v", c)
		}
	})
}

// Ever new words become one event, and of one object too many are not heard.
func TestSpam(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, sink, s := begin(t, nil)
		for i := range 100 {
			r.Event(pod("a"), corev1.EventTypeWarning, "Failed", "error %d", i)
			pass(time.Nanosecond) // in which the clock goes on, as one that is none of a test does
		}
		r.Event(pod("b"), corev1.EventTypeWarning, "Failed", "error")
		synctest.Wait()
		if has := s.list(); len(has) != 11 || sink.Counts().Spam != 75 {
			t.Errorf("%d events, %+v", len(has), sink.Counts())
		}
		pass(5*time.Minute + time.Second)
		r.Event(pod("a"), corev1.EventTypeWarning, "Other", "words")
		synctest.Wait()
		if s.list()["Other words"] == nil {
			t.Errorf("nothing is heard of the object any more")
		}
	})
}

// While the server is away the latest are kept, each once however often it happened, and it is asked seldom.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, sink, s := begin(t, func(c *Config) { c.Queue, c.QPS, c.Burst = 20, 10, 5 })
		s.set(func(context.Context) error { return errors.New("connection refused") })
		r.Event(pod("p0"), corev1.EventTypeNormal, "Pulled", "image")
		synctest.Wait() // it is taken, and tried
		for i := range 50 {
			for range 3 {
				r.Event(pod(fmt.Sprint("p", i)), corev1.EventTypeNormal, "Pulled", "image")
			}
		}
		pass(time.Hour)
		if n := sink.Pending(); n != 20 || s.calls > 800 {
			t.Errorf("%d wait after %d calls", n, s.calls)
		}
		s.calls = 0
		s.set(nil)
		began := time.Now()
		for sink.Pending() > 0 {
			pass(10 * time.Millisecond)
		}
		pass(time.Second) // of the one that is taken, and waits for its turn
		if took := time.Since(began); took < time.Second || took > 20*time.Second || s.calls != 21 || len(s.events) != 21 {
			t.Errorf("%d events with %d calls within %s", len(s.events), s.calls, took)
		}
		for key, e := range s.events {
			if e.Count != 3 && e.InvolvedObject.Name != "p0" {
				t.Errorf("%s has happened %d times", key, e.Count)
			}
		}
		if c := sink.Counts(); c.Dropped != 30 {
			t.Errorf("counts %+v", c)
		}
	})
}

// What the server refuses is left, and an answer that is lost does no harm.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, sink, s := begin(t, nil)
		var first atomic.Bool
		s.set(func(context.Context) error {
			if first.CompareAndSwap(false, true) {
				return apierrors.NewForbidden(corev1.Resource("events"), "x", errors.New("no"))
			}
			return nil
		})
		r.Event(pod("refused"), corev1.EventTypeNormal, "One", "")
		synctest.Wait()
		s.mu.Lock()
		s.lose = func() error {
			s.lose = nil
			return errors.New("connection reset")
		}
		s.mu.Unlock()
		r.Event(pod("lost"), corev1.EventTypeNormal, "Two", "")
		pass(time.Minute)
		var busy atomic.Int64
		s.set(func(context.Context) error {
			if busy.Add(1) == 1 {
				return apierrors.NewTooManyRequests("busy", 30)
			}
			return nil
		})
		r.Event(pod("later"), corev1.EventTypeNormal, "Three", "")
		pass(29 * time.Second)
		if n := busy.Load(); n != 1 {
			t.Errorf("%d tries before the time that the server asked for", n)
		}
		pass(time.Minute)
		s.set(func(context.Context) error { return apierrors.NewInternalError(errors.New("cannot store it")) })
		r.Event(pod("never"), corev1.EventTypeNormal, "Four", "")
		pass(time.Hour)
		s.set(nil)
		r.Event(pod("last"), corev1.EventTypeNormal, "Five", "")
		pass(time.Minute)
		has := s.list()
		if len(has) != 3 || has["Two "] == nil || has["Three "] == nil || has["Five "] == nil {
			t.Errorf("the server has %v", has)
		}
		if c := sink.Counts(); c.Sent != 3 || c.Refused != 2 {
			t.Errorf("counts %+v", c)
		}
	})
}

// A server that does not answer is given up on after a while, and one that answers late gets each event once.
func TestFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, s := begin(t, nil)
		s.set(func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		r.Event(pod("a"), corev1.EventTypeNormal, "One", "")
		pass(time.Minute)
		s.set(nil)
		pass(time.Minute)
		if has := s.list(); len(has) != 1 {
			t.Errorf("the server has %v", has)
		}
	})
}

// An event gives way to what matters more, for a while and where not too many wait.
func TestYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calm := make(chan struct{})
		r, _, s := begin(t, func(c *Config) {
			c.Queue = 20
			c.Calm = func() <-chan struct{} {
				mu.Lock()
				defer mu.Unlock()
				return calm
			}
		})
		has := func() int { return len(s.list()) }
		r.Event(pod("a"), corev1.EventTypeNormal, "One", "")
		pass(mostYield / 2)
		r.Event(pod("a"), corev1.EventTypeNormal, "Two", "")
		synctest.Wait()
		if n := has(); n > 0 {
			t.Errorf("%d events are sent before it is their turn", n)
		}
		pass(mostYield / 2)
		if n := has(); n != 1 {
			t.Errorf("%d events are sent when one has waited long enough", n)
		}
		close(calm)
		synctest.Wait()
		if n := has(); n != 2 {
			t.Errorf("%d events are sent when there is calm", n)
		}
		mu.Lock()
		calm = make(chan struct{})
		mu.Unlock()
		for i := range 15 {
			r.Event(pod(fmt.Sprint("p", i)), corev1.EventTypeNormal, "Pulled", "%d", i)
		}
		synctest.Wait()
		if n := has(); n != 2+5 {
			t.Errorf("%d events are sent where too many wait, of 17", n)
		}
	})
}
