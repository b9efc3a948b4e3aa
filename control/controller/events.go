package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// WithEvents makes a controller that tells of what it does by events of the objects, in the name of a component. What
// it has told is sent as long as it runs.
func WithEvents(client kubernetes.Interface, component string, make func(record.EventRecorder) (Controller, error)) (Controller, error) {
	b := record.NewBroadcaster()
	c, err := make(b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}))
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
