package node

import (
	"log/slog"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
			runtime.Gosched()
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
