// Package event keeps what happened to this node and its pods, as the API's Events: a bounded ring in which an event that
// repeats is counted, not stored again.
package event

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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
}

// Recorder is the ring. It is safe for concurrent use; what it hands out is shared and must not be changed.
type Recorder struct {
	cfg Config

	mu      sync.Mutex
	order   []*corev1.Event // by the time an event was first seen; the first is the next to go
	byKey   map[key]*corev1.Event
	similar map[kind]*similar
	serial  int64
	change  chan struct{} // closed and replaced at every change
}

// key is what makes two events one.
type key struct {
	uid                         types.UID
	field, typ, reason, message string
	combined                    bool // it stands for all of its kind, whatever their messages
}

// New returns an empty Recorder.
func New(c Config) *Recorder {
	if c.Capacity <= 0 {
		c.Capacity = defaultCapacity
	}
	if c.Component == "" {
		c.Component = "berth"
	}
	return &Recorder{cfg: c, byKey: map[key]*corev1.Event{}, similar: map[kind]*similar{}, change: make(chan struct{})}
}

// Event records something about a pod. typ is corev1.EventTypeNormal or corev1.EventTypeWarning.
func (r *Recorder) Event(pod *corev1.Pod, typ, reason, format string, args ...any) {
	r.record(reference(pod, ""), typ, reason, fmt.Sprintf(format, args...))
}

// Node records something about the node itself: as kubelet does, by a name and a UID that are both the node's name.
func (r *Recorder) Node(typ, reason, format string, args ...any) {
	r.record(corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.cfg.Host, UID: types.UID(r.cfg.Host)}, typ, reason, fmt.Sprintf(format, args...))
}

// Container records something about one container of a pod.
func (r *Recorder) Container(pod *corev1.Pod, name, typ, reason, format string, args ...any) {
	r.record(reference(pod, fieldPath(pod, name)), typ, reason, fmt.Sprintf(format, args...))
}

func reference(pod *corev1.Pod, field string) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: field,
	}
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

func (r *Recorder) record(of corev1.ObjectReference, typ, reason, message string) {
	message = shorten(message)
	now := metav1.NewTime(time.Now())
	k := key{uid: of.UID, field: of.FieldPath, typ: typ, reason: reason, message: message}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.combine(k, now.Time) {
		k = key{uid: of.UID, typ: typ, reason: reason, combined: true}
		of.FieldPath = ""
		message = shorten(combinedPrefix + message)
	}
	r.serial++
	e := r.next(of, k, message, now)
	e.ResourceVersion = fmt.Sprint(r.serial)
	r.byKey[k] = e
	close(r.change)
	r.change = make(chan struct{})
}

func shorten(message string) string {
	if len(message) > messageLimit {
		return message[:messageLimit-3] + "..."
	}
	return message
}

// next is the event to be stored for k: a new one, or the last one with its count raised. What was handed out is not changed.
func (r *Recorder) next(of corev1.ObjectReference, k key, message string, now metav1.Time) *corev1.Event {
	if old, ok := r.byKey[k]; ok {
		e := *old
		e.Count++
		e.Message = message
		e.LastTimestamp = now
		r.order[slices.Index(r.order, old)] = &e
		return &e
	}
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", of.Name, now.UnixNano()+r.serial), Namespace: cmp.Or(of.Namespace, metav1.NamespaceDefault),
			UID: types.UID(fmt.Sprintf("%s.%d", of.UID, r.serial)), CreationTimestamp: now,
		},
		InvolvedObject: of,
		Type:           k.typ, Reason: k.reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source:              corev1.EventSource{Component: r.cfg.Component, Host: r.cfg.Host},
		ReportingController: r.cfg.Component, ReportingInstance: r.cfg.Host,
	}
	if len(r.order) >= r.cfg.Capacity {
		old := r.order[0]
		r.order = slices.Delete(r.order, 0, 1)
		delete(r.byKey, keyOf(old))
	}
	r.order = append(r.order, e)
	return e
}

// keyOf is the key under which an event was recorded.
func keyOf(e *corev1.Event) key {
	if strings.HasPrefix(e.Message, combinedPrefix) {
		return key{uid: e.InvolvedObject.UID, typ: e.Type, reason: e.Reason, combined: true}
	}
	return key{uid: e.InvolvedObject.UID, field: e.InvolvedObject.FieldPath, typ: e.Type, reason: e.Reason, message: e.Message}
}

// List returns the events, the oldest first.
func (r *Recorder) List() []*corev1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

// Watch calls fn with ADDED for each event there is and for each new one, and with MODIFIED when one has repeated, until ctx
// ends or fn returns an error, which it returns. A slow fn sees the last state of an event that repeats, not each repetition;
// one that falls behind by a whole ring misses events, as the list would.
func (r *Recorder) Watch(ctx context.Context, fn func(watch.EventType, *corev1.Event) error) error {
	seen := map[types.UID]*corev1.Event{}
	for {
		r.mu.Lock()
		events, change := slices.Clone(r.order), r.change
		r.mu.Unlock()
		for _, e := range events {
			was, known := seen[e.UID]
			if was == e {
				continue
			}
			seen[e.UID] = e
			typ := watch.Added
			if known {
				typ = watch.Modified
			}
			if err := fn(typ, e); err != nil {
				return err
			}
		}
		if len(seen) > 2*len(events)+16 {
			forget(seen, events)
		}
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

// forget drops what is not among events any more.
func forget(seen map[types.UID]*corev1.Event, events []*corev1.Event) {
	keep := make(map[types.UID]bool, len(events))
	for _, e := range events {
		keep[e.UID] = true
	}
	for uid := range seen {
		if !keep[uid] {
			delete(seen, uid)
		}
	}
}
