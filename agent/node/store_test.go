package node

import (
	"context"
	"log/slog"
	goruntime "runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TestLateEnd has somebody hear of a Node's end who is so late that there is another one meanwhile: that one stays.
func TestLateEnd(t *testing.T) {
	node := func(uid types.UID) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: uid, ResourceVersion: "1"}}
	}
	for range 20 {
		s := newStore(nil, "n", slog.New(slog.DiscardHandler))
		s.set(node("old"), false)
		ended := make(chan struct{})
		s.order.Lock()
		go func() {
			defer close(ended)
			s.gone("old")
		}()
		for range 1000 { // it may be anywhere by now
			goruntime.Gosched()
		}
		s.put(nil, false)
		s.put(node("new"), false)
		s.order.Unlock()
		<-ended
		if now, _ := s.get(); now == nil || now.UID != "new" {
			t.Fatalf("there is %v", now)
		}
		s.set(node("new"), false)
		if s.buried != "" {
			t.Fatalf("%s is buried", s.buried)
		}
	}
}

// empty is a client whose lists are what any JSON is read as, or have a Node that no server has.
type empty struct {
	Client

	list corev1.NodeList
}

func (e *empty) List(_ context.Context, _ schema.GroupVersionResource, _ string, _ metav1.ListOptions, into runtime.Object) error {
	e.list.DeepCopyInto(into.(*corev1.NodeList))
	return nil
}

// TestEmptyLists: a list that is none is not a node that is gone.
func TestEmptyLists(t *testing.T) {
	client := &empty{}
	s := newStore(client, "n", slog.New(slog.DiscardHandler))
	s.set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "3"}}, true)
	named := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, client.list = range []corev1.NodeList{
		{},
		{Items: []corev1.Node{named}},
		{ListMeta: metav1.ListMeta{ResourceVersion: "4"}, Items: []corev1.Node{named}},
	} {
		if _, err := s.read(t.Context(), metav1.ListOptions{}); err == nil {
			t.Errorf("%v is a list", client.list)
		}
	}
	if err := s.take(watch.Event{Type: watch.Modified, Object: &named}); err != nil {
		t.Error(err)
	}
	if now, known := s.get(); !known || now == nil || now.UID != "u" {
		t.Errorf("known is %v, %v", now, known)
	}
}
