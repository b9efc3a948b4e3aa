package event

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main"}}, InitContainers: []corev1.Container{{Name: "init"}},
		},
	}
}

// recording is a recorder whose events a ring keeps.
func recording(c Config) (*Recorder, *Ring) {
	ring := NewRing(c)
	return NewRecorder(c.Host, ring), ring
}

func TestRepeatedEventsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ring := recording(Config{Host: "node"})
		for range 3 {
			r.Container(pod("a"), "main", corev1.EventTypeWarning, "BackOff", "Back-off restarting %s", "main")
			time.Sleep(time.Minute)
		}
		r.Container(pod("a"), "init", corev1.EventTypeWarning, "BackOff", "Back-off restarting %s", "main")
		r.Event(pod("b"), corev1.EventTypeWarning, "BackOff", "Back-off restarting %s", "main")
		list := ring.List()
		if len(list) != 3 {
			t.Fatalf("%d events", len(list))
		}
		e := list[0]
		if e.Count != 3 || e.LastTimestamp.Sub(e.FirstTimestamp.Time) != 2*time.Minute || e.InvolvedObject.FieldPath != "spec.containers{main}" ||
			e.Source.Component != "berth" || e.Source.Host != "node" || e.Message != "Back-off restarting main" {
			t.Errorf("%+v", e)
		}
		if list[1].InvolvedObject.FieldPath != "spec.initContainers{init}" || list[2].InvolvedObject.Name != "b" {
			t.Errorf("%+v, %+v", list[1], list[2])
		}
		if list[0].Name == list[1].Name || list[0].UID == list[1].UID {
			t.Error("two events have one name")
		}
	})
}

func TestRingIsBounded(t *testing.T) {
	r, ring := recording(Config{Capacity: 10})
	for i := range 25 {
		r.Event(pod(fmt.Sprint("a", i)), corev1.EventTypeNormal, "Test", "event %d", i)
	}
	list := ring.List()
	if len(list) != 10 || list[0].Message != "event 15" || list[9].Message != "event 24" || len(ring.kept.byHash) != 10 {
		t.Errorf("%d events from %q, %d keys", len(list), list[0].Message, len(ring.kept.byHash))
	}
	// One that was forgotten starts over.
	r.Event(pod("a3"), corev1.EventTypeNormal, "Test", "event %d", 3)
	if e := ring.List()[9]; e.Message != "event 3" || e.Count != 1 {
		t.Errorf("%+v", e)
	}
}

func TestLongMessageIsCut(t *testing.T) {
	r, ring := recording(Config{})
	r.Event(pod("a"), corev1.EventTypeNormal, "Test", "%s", strings.Repeat("x", 5000))
	if m := ring.List()[0].Message; len(m) != messageLimit {
		t.Errorf("message of %d bytes", len(m))
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ring := recording(Config{Capacity: 5})
		r.Event(pod("a"), corev1.EventTypeNormal, "One", "")
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = ring.Watch(ctx, func(typ watch.EventType, e *corev1.Event) error {
				got = append(got, fmt.Sprintf("%s %s %d", typ, e.Reason, e.Count))
				return nil
			})
		}()
		synctest.Wait()
		r.Event(pod("a"), corev1.EventTypeNormal, "Two", "")
		synctest.Wait()
		r.Event(pod("a"), corev1.EventTypeNormal, "One", "")
		synctest.Wait()
		for range 100 {
			r.Event(pod("a"), corev1.EventTypeNormal, "Two", "")
		}
		synctest.Wait()
		cancel()
		<-done
		// Of the hundred it is told what there is whenever it looks, and in the end the last.
		first, last := []string{"ADDED One 1", "ADDED Two 1", "MODIFIED One 2"}, "MODIFIED Two 101"
		if len(got) < 4 || !slices.Equal(got[:3], first) || got[len(got)-1] != last {
			t.Errorf("told %v, want %v, and in the end %s", got, first, last)
		}
	})
}

// TestSimilarEventsAreCombined fails in ever new words.
func TestSimilarEventsAreCombined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ring := recording(Config{Capacity: 15})
		for i := range 20 {
			r.Container(pod("a"), "main", corev1.EventTypeWarning, "Failed", "error %d", i)
		}
		r.Container(pod("a"), "main", corev1.EventTypeNormal, "Pulled", "another reason")
		r.Container(pod("a"), "main", corev1.EventTypeWarning, "Failed", "error 3")
		list := ring.List()
		if len(list) != 11 {
			t.Fatalf("%d events", len(list))
		}
		if e := list[9]; e.Message != combinedPrefix+"error 19" || e.Count != 11 {
			t.Errorf("%d times %q", e.Count, e.Message)
		}
		if e := list[3]; e.Message != "error 3" || e.Count != 2 {
			t.Errorf("one of the first: %d times %q", e.Count, e.Message)
		}
		// After a while without any, each is one of its own again.
		time.Sleep(similarFor + time.Second)
		r.Container(pod("a"), "main", corev1.EventTypeWarning, "Failed", "error 100")
		if e := ring.List()[11]; e.Message != "error 100" {
			t.Errorf("later: %q", e.Message)
		}
		// What the ring has let go of can come again.
		for i := range 30 {
			r.Event(pod("a"), corev1.EventTypeNormal, fmt.Sprint("Reason", i), "x")
		}
		if len(ring.List()) != 15 || len(ring.kept.byHash) != 15 {
			t.Errorf("%d events, %d keys", len(ring.List()), len(ring.kept.byHash))
		}
	})
}

// told is a sink that keeps all it is given.
type told struct{ events []Event }

func (s *told) Put(e Event) { s.events = append(s.events, e) }

// TestAnnotations are those of the last time, over a restart too; more than an event can carry are none.
func TestAnnotations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events")
	r, ring := recording(Config{File: file})
	for _, what := range []string{"disk", "memory"} {
		r.Annotated(pod("a"), map[string]string{"starved_resource": what}, corev1.EventTypeWarning, "Evicted", "low")
	}
	r.Annotated(pod("b"), map[string]string{"x": strings.Repeat("y", annotationsLimit)}, corev1.EventTypeWarning, "Evicted", "low")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ring.Run(ctx)
	for _, list := range [][]*corev1.Event{ring.List(), NewRing(Config{File: file}).List()} {
		if len(list) != 2 || list[0].Annotations["starved_resource"] != "memory" || list[0].Count != 2 || list[1].Annotations != nil {
			t.Errorf("%+v", list)
		}
	}
}

// TestSinks: each sink is given each event as it came, whatever another one makes of it.
func TestSinks(t *testing.T) {
	all, ring := &told{}, NewRing(Config{Host: "node"})
	r := NewRecorder("node", ring, all)
	for range 2 {
		r.Container(pod("a"), "main", corev1.EventTypeWarning, "BackOff", "again")
	}
	r.Node(corev1.EventTypeNormal, "Started", "on %s", "node")
	if len(all.events) != 3 || len(ring.List()) != 2 {
		t.Fatalf("%d and %d events", len(all.events), len(ring.List()))
	}
	if e := all.events[1]; e.About.FieldPath != "spec.containers{main}" || e.About.Kind != "Pod" || e.Message != "again" || e.Time.IsZero() {
		t.Errorf("%+v", e)
	}
	if e := all.events[2]; e.About.Kind != "Node" || e.About.UID != "node" || e.Message != "on node" {
		t.Errorf("%+v", e)
	}
}

// TestEventsAreSmall bounds what an event takes while it is kept: kept as the API has them, events were the larger part
// of the heap of an agent with a hundred pods.
func TestEventsAreSmall(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	r, ring := recording(Config{Host: "node"})
	before := heap()
	for i := range defaultCapacity {
		r.Container(pod(fmt.Sprint("a", i)), "main", corev1.EventTypeNormal, "Test", "container %d was started after a while", i)
	}
	if kept := (heap() - before) / defaultCapacity; kept > 640 {
		t.Errorf("an event takes %d bytes", kept)
	}
	runtime.KeepAlive(ring)
}
