// Package event has what happens to this node and its pods. A [Recorder] makes events of what it is told and hands each
// to its sinks. One of them, a [Ring], shows the latest as the API's Events: an event that repeats is
// counted, not stored again. They are kept in a file, too, so that a restart of the agent does not forget why a pod is
// where it is.
package event

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// messageLimit is the API's: an Event with a longer message would be refused by an API server.
const messageLimit = 1024

// The kinds of objects that events are about.
const (
	kindPod  = "Pod"
	kindNode = "Node"
)

// Event is something that has happened, once.
type Event struct {
	About                 corev1.ObjectReference
	Type, Reason, Message string
	Time                  time.Time
	Annotations           map[string]string // not to be changed
}

// Sink takes events in. Put returns at once, and is called by several goroutines.
type Sink interface {
	Put(Event)
}

// Recorder tells its sinks what it is told. It is safe for concurrent use.
type Recorder struct {
	host  string
	sinks []Sink
}

// NewRecorder returns a Recorder for the node of a name.
func NewRecorder(host string, sinks ...Sink) *Recorder { return &Recorder{host, sinks} }

// Event records something about a pod. typ is corev1.EventTypeNormal or corev1.EventTypeWarning.
func (r *Recorder) Event(pod *corev1.Pod, typ, reason, format string, args ...any) {
	r.record(about(pod, ""), nil, typ, reason, fmt.Sprintf(format, args...))
}

// Annotated records something about a pod with annotations of the event, for programs. Those that are more than an
// event can carry are left out, all of them.
func (r *Recorder) Annotated(pod *corev1.Pod, annotations map[string]string, typ, reason, format string, args ...any) {
	r.record(about(pod, ""), bounded(annotations), typ, reason, fmt.Sprintf(format, args...))
}

// annotationsLimit is in bytes: less than a line of the file has, when each of them is escaped.
const annotationsLimit = 2 << 10

// bounded are the annotations, if they are not too many.
func bounded(annotations map[string]string) map[string]string {
	n := 0
	for k, v := range annotations {
		n += len(k) + len(v)
	}
	if n == 0 || n > annotationsLimit {
		return nil
	}
	return maps.Clone(annotations)
}

// Node records something about the node itself: as kubelet does, by a name and a UID that are both the node's name.
func (r *Recorder) Node(typ, reason, format string, args ...any) {
	node := corev1.ObjectReference{Kind: kindNode, APIVersion: "v1", Name: r.host, UID: types.UID(r.host)}
	r.record(node, nil, typ, reason, fmt.Sprintf(format, args...))
}

// Object records something about an object that is neither a pod nor the node.
func (r *Recorder) Object(of corev1.ObjectReference, typ, reason, format string, args ...any) {
	r.record(of, nil, typ, reason, fmt.Sprintf(format, args...))
}

// Container records something about one container of a pod.
func (r *Recorder) Container(pod *corev1.Pod, name, typ, reason, format string, args ...any) {
	r.record(about(pod, fieldPath(pod, name)), nil, typ, reason, fmt.Sprintf(format, args...))
}

func (r *Recorder) record(
	of corev1.ObjectReference, annotations map[string]string, typ, reason, message string,
) {
	e := Event{About: of, Type: typ, Reason: reason, Message: shorten(message), Time: time.Now(), Annotations: annotations}
	for _, s := range r.sinks {
		s.Put(e)
	}
}

func about(pod *corev1.Pod, field string) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: kindPod, APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
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

func shorten(message string) string {
	if len(message) > messageLimit {
		return message[:messageLimit-3] + "..."
	}
	return message
}
