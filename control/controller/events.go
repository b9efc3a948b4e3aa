package controller

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// maxMessage bounds the text of an event: what the API allows for in events of the group events.k8s.io.
const maxMessage = 1024

// WithEvents makes a controller that tells of what it does by events of the objects, in the name of a component. What
// it has told is sent as long as it runs.
func WithEvents(client kubernetes.Interface, component string, make func(record.EventRecorder) (Controller, error)) (Controller, error) {
	b := record.NewBroadcaster()
	c, err := make(brief{b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})})
	if err != nil {
		b.Shutdown()
		return nil, err
	}
	return telling{c, b, client}, nil
}

type telling struct {
	controller Controller
	events     record.EventBroadcaster
	client     kubernetes.Interface
}

// Run implements [Controller].
func (t telling) Run(ctx context.Context) {
	defer t.events.Shutdown()
	defer t.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: t.client.CoreV1().Events("")}).Stop()
	t.controller.Run(ctx)
}

// brief is a recorder of events whose texts are bounded. What is told has names of strangers in it, or what a webhook
// of theirs has said: the API would take a megabyte of it, for an hour, and the recorder remembers some thousand texts.
type brief struct{ to record.EventRecorder }

// Event implements [record.EventRecorder].
func (b brief) Event(o runtime.Object, kind, reason, message string) {
	b.to.Event(o, kind, reason, excerpt(message))
}

// Eventf implements [record.EventRecorder].
func (b brief) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	b.to.Event(o, kind, reason, excerpt(fmt.Sprintf(format, args...)))
}

// AnnotatedEventf implements [record.EventRecorder].
func (b brief) AnnotatedEventf(o runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	b.to.AnnotatedEventf(o, annotations, kind, reason, "%s", excerpt(fmt.Sprintf(format, args...)))
}

// excerpt is the beginning of a text, as long as it may be. What is cut off is kept by nobody.
func excerpt(text string) string {
	const mark = " ..."
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len(mark)], "") + mark
}
