// Package event keeps what happened to this node and its pods, as the API's Events: a bounded ring in which an event that
// repeats is counted, not stored again. The latest are kept in a file, too, so that a restart of the agent does not forget why a pod
// is where it is.
package event

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	defaultCapacity = 2000
	// messageLimit is the API's: an Event with a longer message would be refused by an API server.
	messageLimit = 1024
)

// Config says who reports. The zero value is of use.
type Config struct {
	Component string // "" = "berth"
	Host      string // the node's name
	Capacity  int    // events kept, 0 = 2000
	File      string // where [Recorder.Run] keeps them over a restart, "" = nowhere
	Log       *slog.Logger
}

// Recorder is the ring. It is safe for concurrent use.
type Recorder struct {
	cfg Config

	mu      sync.Mutex
	ring    ring
	similar map[kind]*similar
	serial  int64
	change  chan struct{} // closed and replaced at every change
}

// New returns a Recorder with the events that the file has. What of it cannot be read is left out.
func New(c Config) *Recorder {
	c.Capacity = cmp.Or(max(c.Capacity, 0), defaultCapacity)
	c.Component = cmp.Or(c.Component, "berth")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Recorder{cfg: c, ring: newRing(c.Capacity), similar: map[kind]*similar{}, change: make(chan struct{})}
	r.load()
	return r
}

// Event records something about a pod. typ is corev1.EventTypeNormal or corev1.EventTypeWarning.
func (r *Recorder) Event(pod *corev1.Pod, typ, reason, format string, args ...any) {
	r.record(about(pod, ""), typ, reason, fmt.Sprintf(format, args...))
}

// Node records something about the node itself: as kubelet does, by a name and a UID that are both the node's name.
func (r *Recorder) Node(typ, reason, format string, args ...any) {
	r.record(entry{Node: true, Name: r.cfg.Host, UID: types.UID(r.cfg.Host)}, typ, reason, fmt.Sprintf(format, args...))
}

// Container records something about one container of a pod.
func (r *Recorder) Container(pod *corev1.Pod, name, typ, reason, format string, args ...any) {
	r.record(about(pod, fieldPath(pod, name)), typ, reason, fmt.Sprintf(format, args...))
}

func about(pod *corev1.Pod, field string) entry {
	return entry{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Version: pod.ResourceVersion, Field: field}
}

// fieldPath is how an Event names a container: by the list of the spec that it is in.
func fieldPath(pod *corev1.Pod, name string) string {
	named := func(c corev1.Container) bool { return c.Name == name }
	switch {
	case slices.ContainsFunc(pod.Spec.Containers, named):
		return "spec.containers{" + name + "}"
	case slices.ContainsFunc(pod.Spec.InitContainers, named):
		return "spec.initContainers{" + name + "}"
	default:
		return "spec.ephemeralContainers{" + name + "}"
	}
}

func (r *Recorder) record(e entry, typ, reason, message string) {
	e.Type, e.Reason, e.Message = typ, reason, shorten(message)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Combined = r.combine(&e, now); e.Combined {
		e.Field, e.Message = "", shorten(combinedPrefix+e.Message)
	}
	r.serial++
	if old := r.ring.like(&e); old != nil {
		old.Count++
		old.Message, old.Last, old.Serial = e.Message, now.UnixNano(), r.serial
	} else {
		e.Count, e.Born, e.First, e.Last, e.Serial = 1, r.serial, now.UnixNano(), now.UnixNano(), r.serial
		r.ring.add(e)
	}
	close(r.change)
	r.change = make(chan struct{})
}

func shorten(message string) string {
	if len(message) > messageLimit {
		return message[:messageLimit-3] + "..."
	}
	return message
}

// object is the event as the API has it.
func (r *Recorder) object(e *entry) *corev1.Event {
	kind := "Pod"
	if e.Node {
		kind = "Node"
	}
	first, last := metav1.NewTime(time.Unix(0, e.First)), metav1.NewTime(time.Unix(0, e.Last))
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", e.Name, e.First+e.Born), Namespace: cmp.Or(e.Namespace, metav1.NamespaceDefault),
			UID: types.UID(fmt.Sprintf("%s.%d", e.UID, e.Born)), CreationTimestamp: first, ResourceVersion: fmt.Sprint(e.Serial),
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: kind, APIVersion: "v1", Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.Version, FieldPath: e.Field,
		},
		Type: e.Type, Reason: e.Reason, Message: e.Message, Count: e.Count, FirstTimestamp: first, LastTimestamp: last,
		Source:              corev1.EventSource{Component: r.cfg.Component, Host: r.cfg.Host},
		ReportingController: r.cfg.Component, ReportingInstance: r.cfg.Host,
	}
}

// List returns the events, the oldest first.
func (r *Recorder) List() []*corev1.Event {
	entries, _, _ := r.since(0)
	out := make([]*corev1.Event, len(entries))
	for i := range entries {
		out[i] = r.object(&entries[i])
	}
	return out
}

// since are the entries that have changed after the serial, the serial that is the last now, and what is closed at the next change.
func (r *Recorder) since(serial int64) ([]entry, int64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring.since(serial), r.serial, r.change
}

// Watch calls fn with ADDED for each event there is and for each new one, and with MODIFIED when one has repeated, until ctx
// ends or fn returns an error, which it returns. A slow fn sees the last state of an event that repeats, not each repetition;
// one that falls behind by a whole ring misses events, as the list would.
func (r *Recorder) Watch(ctx context.Context, fn func(watch.EventType, *corev1.Event) error) error {
	var seen int64
	for {
		entries, serial, change := r.since(seen)
		for i := range entries {
			typ := watch.Added
			if entries[i].Born <= seen {
				typ = watch.Modified
			}
			if err := fn(typ, r.object(&entries[i])); err != nil {
				return err
			}
		}
		seen = serial
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-change:
		}
	}
}

// Subscribe returns a Watch. Nothing has to be held for it meanwhile: the ring holds what comes.
func (r *Recorder) Subscribe() func(context.Context, func(watch.EventType, *corev1.Event) error) error {
	return r.Watch
}
