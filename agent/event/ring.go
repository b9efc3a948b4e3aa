package event

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const defaultCapacity = 2000

// Config says who reports. The zero value is of use.
type Config struct {
	Component string // "" = "berth"
	Host      string // the node's name
	Capacity  int    // events kept, 0 = 2000
	File      string // where [Ring.Run] keeps them over a restart, "" = nowhere
	Log       *slog.Logger
}

// Ring is the [Sink] that keeps the latest events. It is safe for concurrent use.
type Ring struct {
	cfg Config

	mu      sync.Mutex
	kept    buffer
	similar map[kind]*similar
	tidy    int // how many kinds there are when those are dropped that nothing is like any more
	serial  int64
	change  chan struct{} // closed and replaced at every change
}

// NewRing returns a Ring with the events that the file has. What of it cannot be read is left out.
func NewRing(c Config) *Ring {
	c.Capacity = cmp.Or(max(c.Capacity, 0), defaultCapacity)
	c.Component = cmp.Or(c.Component, "berth")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	r := &Ring{cfg: c, kept: newBuffer(c.Capacity), similar: map[kind]*similar{}, tidy: c.Capacity, change: make(chan struct{})}
	r.load()
	return r
}

// Put keeps an event, or counts it as one more of those that it repeats.
func (r *Ring) Put(of Event) {
	e := entry{
		Namespace: of.About.Namespace, Name: of.About.Name, UID: of.About.UID, Version: of.About.ResourceVersion,
		Field: of.About.FieldPath, Node: of.About.Kind == kindNode, Type: of.Type, Reason: of.Reason, Message: of.Message,
		Annotations: of.Annotations,
	}
	if k := of.About.Kind; k != kindNode && k != kindPod {
		e.Kind = k
		if of.About.APIVersion != "v1" {
			e.API = of.About.APIVersion
		}
	}
	at := of.Time.UnixNano()
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Combined = r.combine(&e, of.Time); e.Combined {
		e.Field, e.Message = "", shorten(combinedPrefix+e.Message)
	}
	r.serial++
	if old := r.kept.like(&e); old != nil {
		old.Count++
		old.Message, old.Last, old.Serial, old.Annotations = e.Message, at, r.serial, e.Annotations
	} else {
		e.Count, e.Born, e.First, e.Last, e.Serial = 1, r.serial, at, at, r.serial
		r.kept.add(e)
	}
	close(r.change)
	r.change = make(chan struct{})
}

// object is the event as the API has it.
func (r *Ring) object(e *entry) *corev1.Event {
	kind := cmp.Or(e.Kind, kindPod)
	if e.Node {
		kind = kindNode
	}
	first, last := metav1.NewTime(time.Unix(0, e.First)), metav1.NewTime(time.Unix(0, e.Last))
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", e.Name, e.First+e.Born), Namespace: cmp.Or(e.Namespace, metav1.NamespaceDefault),
			UID: types.UID(fmt.Sprintf("%s.%d", e.UID, e.Born)), CreationTimestamp: first, ResourceVersion: fmt.Sprint(e.Serial),
			Annotations: maps.Clone(e.Annotations),
		},
		InvolvedObject: corev1.ObjectReference{
			Kind: kind, APIVersion: cmp.Or(e.API, "v1"), Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.Version, FieldPath: e.Field,
		},
		Type: e.Type, Reason: e.Reason, Message: e.Message, Count: e.Count, FirstTimestamp: first, LastTimestamp: last,
		Source:              corev1.EventSource{Component: r.cfg.Component, Host: r.cfg.Host},
		ReportingController: r.cfg.Component, ReportingInstance: r.cfg.Host,
	}
}

// List returns the events, the oldest first.
func (r *Ring) List() []*corev1.Event {
	entries, _, _ := r.since(0)
	out := make([]*corev1.Event, len(entries))
	for i := range entries {
		out[i] = r.object(&entries[i])
	}
	return out
}

// since are the entries that have changed after the serial, the serial that is the last now, and what is closed at the
// next change.
func (r *Ring) since(serial int64) ([]entry, int64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.since(serial), r.serial, r.change
}

// Watch calls fn with ADDED for each event there is and for each new one, and with MODIFIED when one has repeated,
// until ctx ends or fn returns an error, which it returns. A slow fn sees the last state of an event that repeats, not
// each repetition; one that falls behind by a whole ring misses events, as the list would.
func (r *Ring) Watch(ctx context.Context, fn func(watch.EventType, *corev1.Event) error) error {
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
func (r *Ring) Subscribe() func(context.Context, func(watch.EventType, *corev1.Event) error) error {
	return r.Watch
}
