package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func pod(name, uid string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}, Status: corev1.PodStatus{Phase: phase}}
}

// follow notes what a watcher is told; while hold is not nil it waits for it before each.
func follow(ctx context.Context, w *Writer, into *[]string, hold chan struct{}) error {
	return w.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error {
		if hold != nil {
			<-hold
		}
		*into = append(*into, fmt.Sprintf("%s %s/%s %s", t, p.Name, p.UID, p.Status.Phase))
		return nil
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWriter()
		w.Put(pod("b", "1", corev1.PodRunning))
		w.Put(pod("a", "1", corev1.PodRunning))
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		done := make(chan error)
		go func() { done <- follow(ctx, w, &got, nil) }()
		synctest.Wait()
		w.Put(pod("a", "1", corev1.PodFailed))
		synctest.Wait()
		w.Put(pod("a", "2", corev1.PodPending)) // another pod under the same name
		synctest.Wait()
		w.Delete(pod("a", "1", "")) // the old one: nothing happens
		w.Delete(pod("b", "1", ""))
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("watch ended with %v", err)
		}
		want := []string{
			"ADDED a/1 Running", "ADDED b/1 Running", "MODIFIED a/1 Failed", "DELETED a/1 Failed", "ADDED a/2 Pending", "DELETED b/1 Running",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if list := w.List(); len(list) != 1 || list[0].UID != "2" {
			t.Errorf("list %v", list)
		}
	})
}

// Who is slow hears the last of several changes, and a pod that came and went meanwhile not at all.
func TestSlowWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWriter()
		w.Put(pod("a", "1", corev1.PodPending))
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		hold, done := make(chan struct{}), make(chan error)
		go func() { done <- follow(ctx, w, &got, hold) }()
		synctest.Wait()
		w.Put(pod("a", "1", corev1.PodRunning))
		w.Put(pod("a", "1", corev1.PodFailed))
		w.Put(pod("flash", "1", corev1.PodPending))
		w.Delete(pod("flash", "1", ""))
		w.Delete(pod("a", "1", ""))
		w.Put(pod("a", "2", corev1.PodPending))
		w.Put(pod("a", "2", corev1.PodRunning))
		w.Put(pod("a", "3", corev1.PodPending))
		close(hold)
		synctest.Wait()
		cancel()
		<-done
		want := []string{"ADDED a/1 Pending", "DELETED a/1 Failed", "ADDED a/3 Pending"}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// What is there when a watch begins and goes before it goes on has been there: who was told that the watch had begun
// may have seen it, and waits to hear that it went.
func TestSubscribe(t *testing.T) {
	w := NewWriter()
	w.Put(pod("a", "1", corev1.PodRunning))
	follow := w.Subscribe()
	w.Delete(pod("a", "1", ""))
	var got []string
	gone := errors.New("gone")
	err := follow(t.Context(), func(typ watch.EventType, p *corev1.Pod) error {
		if got = append(got, string(typ)+" "+p.Name); typ == watch.Deleted {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || strings.Join(got, ", ") != "ADDED a, DELETED a" || len(w.watch) != 0 {
		t.Errorf("told %q, ended with %v, %d watchers are left", got, err, len(w.watch))
	}
}

func TestWatchEndsWithItsReader(t *testing.T) {
	w := NewWriter()
	w.Put(pod("a", "1", corev1.PodRunning))
	stop := errors.New("enough")
	err := w.Watch(t.Context(), func(watch.EventType, *corev1.Pod) error { return stop })
	if !errors.Is(err, stop) || len(w.watch) != 0 {
		t.Errorf("watch ended with %v, %d are left", err, len(w.watch))
	}
}

// TestResourceVersionIsTheAPIs: a pod has the version that an API server gave it, or none, however often its status is
// written here.
func TestResourceVersionIsTheAPIs(t *testing.T) {
	w := NewWriter()
	remote, static := pod("remote", "1", corev1.PodRunning), pod("static", "2", corev1.PodRunning)
	remote.ResourceVersion = "77"
	w.Put(remote)
	w.Put(static)
	if list := w.List(); list[0].ResourceVersion != "77" || list[1].ResourceVersion != "" {
		t.Errorf("versions %q and %q", list[0].ResourceVersion, list[1].ResourceVersion)
	}
}

// heard notes what a sink is told.
type heard []string

// Put implements [Sink].
func (h *heard) Put(p *corev1.Pod) {
	*h = append(*h, fmt.Sprintf("put %s/%s %s", p.Name, p.UID, p.Status.Phase))
}

// Delete implements [Sink].
func (h *heard) Delete(p *corev1.Pod) { *h = append(*h, fmt.Sprintf("delete %s/%s", p.Name, p.UID)) }

// A sink hears all: what a slow watcher would not, and that nothing is there of a pod that was never put.
func TestSinks(t *testing.T) {
	var one, two heard
	w := NewWriter(&one, &two)
	w.Put(pod("a", "1", corev1.PodPending))
	w.Put(pod("a", "1", corev1.PodRunning))
	w.Put(pod("a", "2", corev1.PodPending))
	w.Delete(pod("a", "1", ""))
	w.Delete(pod("never", "1", ""))
	const want = "put a/1 Pending\nput a/1 Running\nput a/2 Pending\ndelete a/1\ndelete never/1"
	for _, h := range []heard{one, two} {
		if got := strings.Join(h, "\n"); got != want {
			t.Errorf("told\n%s\nwant\n%s", got, want)
		}
	}
	if p, ok := w.Get(types.NamespacedName{Namespace: "default", Name: "a"}); !ok || p.UID != "2" {
		t.Errorf("there is %v", p)
	}
}
