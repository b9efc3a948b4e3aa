package controller

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

type teller struct{ tell func() }

func (t teller) Run(ctx context.Context) { t.tell(); <-ctx.Done() }

// TestBriefEvents tells what is a megabyte, in each of the ways in which controllers tell: what is sent is what the API
// takes of events, and text.
func TestBriefEvents(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client, sent := fake.NewClientset(), make(chan string, 10)
	client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e, _ := a.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		sent <- e.Message
		return true, e, nil
	})
	long := "an " + strings.Repeat("é", 500_000)
	c, err := WithEvents(client, "test", func(r record.EventRecorder) (Controller, error) {
		return teller{func() {
			for i, tell := range []func(*corev1.Pod){
				func(p *corev1.Pod) { r.Event(p, corev1.EventTypeNormal, "A", long) },
				func(p *corev1.Pod) { r.Eventf(p, corev1.EventTypeNormal, "B", "%s%d", long, 1) },
				func(p *corev1.Pod) { r.AnnotatedEventf(p, nil, corev1.EventTypeNormal, "C", "%s%d", long, 1) },
				func(p *corev1.Pod) { r.Eventf(p, corev1.EventTypeNormal, "D", "%s%d", "an é", 1) },
			} {
				tell(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Generation: int64(i)}})
			}
		}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	for range 3 {
		text := <-sent
		if len(text) > 1024 || len(text) < 1000 || text != strings.ToValidUTF8(text, "?") || !strings.HasPrefix(text, "an éé") || !strings.HasSuffix(text, "é ...") {
			t.Errorf("sent are %d bytes: %.20q", len(text), text)
		}
	}
	if text := <-sent; text != "an é1" {
		t.Errorf("a short one is %q", text)
	}
	cancel()
	<-ended
}
