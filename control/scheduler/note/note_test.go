package note

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// written is a sink that hands on what is written.
type written chan *eventsv1.Event

func (w written) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	w <- e
	return e, nil
}

func (w written) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return w.Create(ctx, e)
}

func (w written) Patch(ctx context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	return w.Create(ctx, e)
}

func (w written) next(t *testing.T) *eventsv1.Event {
	t.Helper()
	select {
	case e := <-w:
		return e
	case <-t.Context().Done():
	case <-time.After(time.Minute):
	}
	t.Fatal("no event is written")
	return nil
}

// TestNewTextIsNewEvent says one thing, that again, another, and the first again: each change is an event of its own,
// which is about the pod as it was, and what is repeated is one series.
func TestNewTextIsNewEvent(t *testing.T) {
	w := make(written, 10)
	b := events.NewBroadcaster(NewSink(w))
	defer b.Shutdown()
	if err := b.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := NewRecorder(b.NewRecorder(scheme.Scheme, "default-scheduler"), scheme.Scheme)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: "u", ResourceVersion: "7"}}
	names := map[string]bool{}
	for _, step := range []struct {
		text   string
		series bool
	}{{"taint", false}, {"taint", true}, {"no volume", false}, {"taint", false}, {"100% full", false}} {
		r.Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "%s", step.text)
		e := w.next(t)
		if e.Note != step.text || (e.Series != nil) != step.series {
			t.Errorf("%q comes as %q, series %v", step.text, e.Note, e.Series)
		}
		if known := names[e.Name]; known != step.series {
			t.Errorf("%q: event %s was written before: %v", step.text, e.Name, known)
		}
		names[e.Name] = true
		if e.Regarding.ResourceVersion != "7" || e.Regarding.UID != "u" || e.Regarding.Kind != "Pod" {
			t.Errorf("it is about %v", e.Regarding)
		}
	}
}

// TestSeriesAreBounded has a pod whose text is another one each time.
func TestSeriesAreBounded(t *testing.T) {
	r := NewRecorder(nil, scheme.Scheme)
	numbers := map[string]bool{}
	key := series{"u", corev1.EventTypeWarning, "FailedScheduling", "Scheduling"}
	for i := range 1000 {
		numbers[r.said.series(key, "1", strings.Repeat("x", i))] = true
	}
	// One is the first; some more may have come while this has run.
	if n := len(numbers); n < burst+1 || n > 2*burst {
		t.Errorf("%d series have begun", n)
	}
	for i := range 2 * most {
		r.said.series(series{uid: key.uid, reason: strings.Repeat("y", i%7) + string(rune(i))}, "1", "x")
	}
	if n := r.said.all.Len(); n > most {
		t.Errorf("%d are known", n)
	}
}

// stuck is an API server that answers nothing until it is told to.
type stuck struct {
	events.EventSink
	began, answers chan struct{}
}

func (s stuck) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.began <- struct{}{}
	<-s.answers
	return e, nil
}

// TestWritesAtOnce has many pods be told of while nothing is answered.
func TestWritesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 100
		w := stuck{began: make(chan struct{}, pods), answers: make(chan struct{})}
		b := events.NewBroadcaster(NewSink(w))
		defer b.Shutdown()
		if err := b.StartRecordingToSinkWithContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := b.NewRecorder(scheme.Scheme, "default-scheduler")
		for i := range pods {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", UID: types.UID(strconv.Itoa(i))}}
			r.Eventf(pod, nil, corev1.EventTypeNormal, "Scheduled", "Binding", "")
		}
		for range atOnce {
			<-w.began
		}
		for i := range pods {
			select {
			case <-w.began:
				t.Errorf("after %d answers one more is written than may be", i)
			default:
			}
			w.answers <- struct{}{}
			if i < pods-atOnce {
				<-w.began
			}
		}
	})
}
