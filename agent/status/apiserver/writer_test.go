package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/status"
)

var _ status.Sink = (*Writer)(nil)

// begin runs a Writer on a server whose watch tells it all at once.
func begin(t *testing.T, s *server, with func(*Config)) *Writer {
	t.Helper()
	w, kill := beginUntil(t, s, with)
	t.Cleanup(kill)
	return w
}

// beginUntil is begin until what it returns is called.
func beginUntil(t *testing.T, s *server, with func(*Config)) (*Writer, func()) {
	t.Helper()
	c := Config{Client: s, Node: "node", NodeUID: func() types.UID { return "node-uid" }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if with != nil {
		with(&c)
	}
	w := New(c)
	s.mu.Lock()
	s.told = tell(w)
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	return w, func() {
		cancel()
		<-done
	}
}

// tell is a watch, which would come later.
func tell(w *Writer) func(*corev1.Pod, bool) {
	return func(pod *corev1.Pod, gone bool) {
		switch {
		case desired.IsMirror(pod) && gone:
			w.Mirror(keyOf(pod), nil)
		case desired.IsMirror(pod):
			w.Mirror(keyOf(pod), pod)
		case gone:
			w.Gone(pod)
		default:
			w.Seen(pod)
		}
	}
}

// as is a pod with a status of the node.
func as(pod *corev1.Pod, phase corev1.PodPhase, ready bool) *corev1.Pod {
	pod = pod.DeepCopy()
	now := metav1.Now()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	c := corev1.ContainerStatus{Name: "main", Image: "i", Ready: ready}
	switch phase {
	case corev1.PodRunning:
		c.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
	case corev1.PodPending:
		c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	default:
		c.State.Terminated = &corev1.ContainerStateTerminated{FinishedAt: now}
	}
	pod.Status = corev1.PodStatus{
		Phase: phase, StartTime: &now, ContainerStatuses: []corev1.ContainerStatus{c},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: now}},
	}
	return pod
}

// settle waits until nothing is left to do.
func settle(t *testing.T, w *Writer) {
	t.Helper()
	for range 600 {
		synctest.Wait()
		if w.Pending() == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("%d pods are not written", w.Pending())
}

func want(t *testing.T, s *server, calls ...string) {
	t.Helper()
	if got := s.writes(); !slices.Equal(got, calls) {
		t.Errorf("calls %q, want %q", got, calls)
	}
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		pod := s.add(apiPod("a"))
		w.Listed()
		w.Put(as(pod, corev1.PodPending, false))
		w.Put(as(pod, corev1.PodRunning, false))
		w.Put(as(pod, corev1.PodRunning, true))
		settle(t, w)
		want(t, s, "patch a")
		w.Put(as(pod, corev1.PodRunning, true))
		settle(t, w)
		want(t, s, "patch a")
		has := s.get(keyOf(pod))
		if has.Status.Phase != corev1.PodRunning || !has.Status.ContainerStatuses[0].Ready || has.Status.QOSClass == "" {
			t.Errorf("the server has %+v", has.Status)
		}
		// Somebody else changes what is the node's to say.
		s.change(keyOf(pod), func(p *corev1.Pod) { p.Status.PodIP, p.Status.Phase = "1.2.3.4", corev1.PodPending })
		settle(t, w)
		time.Sleep(time.Second)
		want(t, s, "patch a", "patch a")

		s.change(keyOf(pod), func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		w.Put(as(pod, corev1.PodSucceeded, false))
		w.Delete(pod)
		settle(t, w)
		want(t, s, "patch a", "patch a", "patch a", "delete a")
		if s.get(keyOf(pod)) != nil || len(w.pods) != 0 || s.reads != 0 {
			t.Errorf("left: %v, %v, after %d reads", s.get(keyOf(pod)), w.pods, s.reads)
		}
	})
}

// A pod that is deleted before it ran has failed, and one whose container nobody saw the end of is not said to run.
func TestDeletedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		never, running := apiPod("never"), as(apiPod("running"), corev1.PodRunning, true)
		for _, p := range []*corev1.Pod{never, running} {
			p.DeletionTimestamp = new(metav1.Now())
			s.add(p)
			w.Delete(p)
		}
		settle(t, w)
		last := map[string]corev1.PodStatus{}
		for _, p := range s.history {
			last[p.Name] = p.Status
		}
		if last["never"].Phase != corev1.PodFailed || last["running"].Phase != corev1.PodFailed ||
			last["running"].ContainerStatuses[0].State.Terminated == nil || last["running"].Conditions[0].Status != corev1.ConditionFalse {
			t.Errorf("the last was %+v", last)
		}
		if len(s.writes()) != 4 || len(s.pods) != 0 {
			t.Errorf("%q leave %v", s.writes(), s.pods)
		}
	})
}

// Pods that the server has no more, or has another of by the name, are forgotten.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		gone, made := s.add(apiPod("gone")), s.add(apiPod("made"))
		s.told = nil
		s.mu.Lock()
		s.remove(keyOf(gone))
		s.mu.Unlock()
		again := apiPod("made")
		again.UID = "another"
		s.add(again)
		for _, p := range []*corev1.Pod{gone, made} {
			w.Put(as(p, corev1.PodRunning, true))
		}
		settle(t, w)
		if n := len(s.writes()); n != 2 {
			t.Errorf("calls %q", s.writes())
		}
		w.Put(as(made, corev1.PodFailed, false))
		w.Delete(gone)
		w.Delete(made)
		settle(t, w)
		if n := len(s.writes()); n != 2 || len(w.pods) != 0 || s.get(keyOf(made)).UID != "another" {
			t.Errorf("calls %q leave %v", s.writes(), w.pods)
		}
	})
}

// The server answers with errors of each kind, and gets the status in the end.
func TestErrors(t *testing.T) {
	busy := apierrors.NewTooManyRequests("busy", 7)
	for name, c := range map[string]struct {
		err   error
		least time.Duration
		most  time.Duration
	}{
		"429":         {busy, 7 * time.Second, 10 * time.Second},
		"503":         {apierrors.NewServiceUnavailable("away"), 0, time.Second},
		"500":         {apierrors.NewInternalError(errors.New("webhook")), 0, time.Second},
		"403":         {apierrors.NewForbidden(podsResource, "a", errors.New("no")), 500 * time.Millisecond, 2 * time.Second},
		"unreachable": {errors.New("connection refused"), 0, time.Second},
		"conflict":    {apierrors.NewConflict(podsResource, "a", errors.New("changed")), 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t)
				w := begin(t, s, nil)
				w.Listed()
				pod := s.add(apiPod("a"))
				began, failed := time.Now(), false
				s.before = func(_ context.Context, verb string, _ types.NamespacedName) error {
					if verb != "patch" || failed {
						return nil
					}
					failed = true
					return c.err
				}
				w.Put(as(pod, corev1.PodRunning, true))
				settle(t, w)
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("written after %s", took)
				}
				want(t, s, "patch a")
			})
		})
	}
}

// While the server is away one call at a time looks for it, and when it is back all have their latest status soon, with
// no more calls at once than are allowed.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, func(c *Config) { c.Parallel = 8 })
		w.Listed()
		var pods []*corev1.Pod
		for i := range 200 {
			pods = append(pods, s.add(apiPod("a-"+string(rune('a'+i%26))+string(rune('a'+i/26)))))
		}
		away, tries, now, most := true, 0, 0, 0
		s.before = func(ctx context.Context, _ string, _ types.NamespacedName) error {
			s.mu.Lock()
			now++
			most = max(most, now)
			isAway := away
			tries++
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				now--
				s.mu.Unlock()
			}()
			if isAway {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(10 * time.Millisecond)
			return nil
		}
		for _, p := range pods {
			w.Put(as(p, corev1.PodRunning, false))
		}
		time.Sleep(10 * time.Minute)
		for _, p := range pods {
			w.Put(as(p, corev1.PodRunning, true))
		}
		pending := w.Pending()
		s.mu.Lock()
		if pending != 200 || tries > 80 {
			t.Errorf("%d pods wait after %d tries", pending, tries)
		}
		away, tries, most = false, 0, 0
		s.mu.Unlock()
		w.Listed() // its watch is back
		began := time.Now()
		settle(t, w)
		took := time.Since(began)
		s.mu.Lock()
		if took > 25*time.Second || most > 8 || tries != 200 {
			t.Errorf("written after %s with %d calls, %d at once", took, tries, most)
		}
		s.mu.Unlock()
		for _, p := range pods {
			if has := s.get(keyOf(p)); !has.Status.ContainerStatuses[0].Ready {
				t.Errorf("%s has %+v", p.Name, has.Status)
			}
		}
	})
}

// A patch that was given up, but arrives after a later one, changes nothing.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, func(c *Config) { c.Timeout = time.Second })
		w.Listed()
		pod := s.add(apiPod("a"))
		n := 0
		s.before = func(ctx context.Context, verb string, _ types.NamespacedName) error {
			if n++; verb == "patch" && n == 1 {
				time.Sleep(30 * time.Second) // it is on its way, whatever the client does
			}
			return nil
		}
		s.after = func(ctx context.Context, _ string, _ types.NamespacedName) error { return ctx.Err() }
		first := as(pod, corev1.PodRunning, false)
		w.Put(first)
		time.Sleep(time.Millisecond)
		w.Put(as(pod, corev1.PodRunning, true))
		time.Sleep(time.Minute)
		settle(t, w)
		if has := s.get(keyOf(pod)); !has.Status.ContainerStatuses[0].Ready {
			t.Errorf("the server has %+v", has.Status)
		}
		for _, p := range s.history[1:] {
			if !p.Status.ContainerStatuses[0].Ready && s.history[1] != p {
				t.Errorf("the server had %+v", p.Status)
			}
		}
	})
}

// A server that does not know a field, or has it changed, is not told of it without end.
func TestNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		pod := s.add(apiPod("a"))
		inner := s.told
		drop := func(p *corev1.Pod, gone bool) {
			p.Status.ObservedGeneration = 0
			for i := range p.Status.ContainerStatuses {
				p.Status.ContainerStatuses[i].StopSignal = nil
			}
			inner(p, gone)
		}
		s.told = drop
		full := func(ready bool) *corev1.Pod {
			p := as(pod, corev1.PodRunning, ready)
			p.Status.ObservedGeneration, p.Status.ContainerStatuses[0].StopSignal = 1, new(corev1.SIGTERM)
			return p
		}
		w.Put(full(false))
		settle(t, w)
		w.Put(full(false))
		s.change(keyOf(pod), func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
		time.Sleep(time.Hour)
		want(t, s, "patch a")
		w.Put(full(true))
		settle(t, w)
		want(t, s, "patch a", "patch a")
	})
}

// Who undoes what the node says is told again, less often each time, and what is new is not held up by that.
func TestUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		pod := s.add(apiPod("a"))
		w.Put(as(pod, corev1.PodRunning, true))
		for range 6000 {
			synctest.Wait()
			if has := s.get(keyOf(pod)); has.Status.HostIP == "" && len(has.Status.ContainerStatuses) > 0 {
				s.change(keyOf(pod), func(p *corev1.Pod) { p.Status.HostIP = "192.0.2.1" })
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(s.writes()); n < 5 || n > 25 {
			t.Errorf("%d writes in a minute", n)
		}
		w.Put(as(pod, corev1.PodSucceeded, false))
		synctest.Wait()
		if has := s.get(keyOf(pod)); has.Status.Phase != corev1.PodSucceeded {
			t.Errorf("the server has %+v", has.Status)
		}
	})
}

// A server that was restored from an older state is told all again.
func TestRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		w.Listed()
		old := s.add(apiPod("a")).DeepCopy()
		w.Put(as(old, corev1.PodRunning, true))
		settle(t, w)
		s.mu.Lock()
		s.pods[keyOf(old)], s.version = old, 50
		old.ResourceVersion = "50"
		s.mu.Unlock()
		w.Reset()
		settle(t, w)
		time.Sleep(time.Second)
		if has := s.get(keyOf(old)); has.Status.Phase != corev1.PodRunning {
			t.Errorf("the server has %+v after %s", has.Status, strings.Join(s.writes(), ", "))
		}
	})
}

// What a pod on its way has to say waits for what follows, also where that takes longer than on a node with one pod;
// what has gone wrong does not.
func TestStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		slow, bad := s.add(apiPod("slow")), s.add(apiPod("bad"))
		w.Listed()
		w.Put(as(slow, corev1.PodPending, false))
		time.Sleep(quietStarting / 2)
		has := as(slow, corev1.PodPending, false)
		has.Status.PodIP = "1.2.3.4"
		w.Put(has)
		time.Sleep(quietStarting / 4)
		synctest.Wait()
		want(t, s)
		w.Put(as(slow, corev1.PodRunning, true))
		synctest.Wait()
		want(t, s, "patch slow")
		has = as(bad, corev1.PodPending, false)
		has.Status.ContainerStatuses[0].State.Waiting.Reason = "ErrImagePull"
		w.Put(has)
		time.Sleep(quiet)
		synctest.Wait()
		want(t, s, "patch slow", "patch bad")
		// One that takes very long is told of meanwhile.
		late := s.add(apiPod("late"))
		w.Put(as(late, corev1.PodPending, false))
		time.Sleep(quietStarting)
		synctest.Wait()
		want(t, s, "patch slow", "patch bad", "patch late")
	})
}

// There is calm when all is said, or when what is left is not taken.
func TestCalm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		w := begin(t, s, nil)
		calm := func(c <-chan struct{}) bool {
			synctest.Wait()
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
		if !calm(w.Calm()) {
			t.Error("nothing is to be said, and there is no calm")
		}
		pod := s.add(apiPod("a"))
		w.Listed()
		w.Put(as(pod, corev1.PodPending, false))
		c := w.Calm()
		if calm(c) {
			t.Error("there is calm before a status is sent")
		}
		time.Sleep(quietStarting)
		if !calm(c) || !calm(w.Calm()) {
			t.Error("there is no calm after it")
		}
		s.before = func(context.Context, string, types.NamespacedName) error {
			return apierrors.NewForbidden(podsResource, "a", errors.New("no"))
		}
		w.Put(as(pod, corev1.PodRunning, true))
		if !calm(w.Calm()) {
			t.Error("what is refused lets nobody else speak")
		}
	})
}
