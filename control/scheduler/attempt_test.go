package scheduler

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/config"
)

// slow is a binder whose binding takes its time, at one point or none.
type slow struct {
	binder

	permits, prepares bool
	nominated         *told
	seen              chan string // what was told when binding waited
}

// Permit implements [fwk.PermitPlugin].
func (s *slow) Permit(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.Status, time.Duration) {
	if !s.permits {
		return nil, 0
	}
	go func() {
		s.seen <- <-s.nominated.first // nobody permits it before
		s.b.s.profiles[config.DefaultScheduler].Handle().GetWaitingPod(pod.UID).Allow(s.Name())
	}()
	return fwk.NewStatus(fwk.Wait), time.Hour
}

// PreBindPreFlight implements [fwk.PreBindPlugin].
func (s *slow) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	if s.prepares {
		return nil, nil
	}
	return nil, fwk.NewStatus(fwk.Skip)
}

// PreBind implements [fwk.PreBindPlugin].
func (s *slow) PreBind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	select {
	case what := <-s.nominated.first:
		s.seen <- what
	default:
		s.seen <- "nothing"
	}
	return nil
}

// told is an API server that takes writes, and knows which of them nominate.
type told struct {
	once  sync.Once
	first chan string
	count atomic.Int32
	fails bool
}

// RoundTrip implements [http.RoundTripper].
func (w *told) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, _ := io.ReadAll(r.Body)
	code, body := http.StatusOK, `{"kind":"Pod","apiVersion":"v1"}`
	if bytes.Contains(sent, []byte("nominatedNodeName")) {
		w.count.Add(1)
		w.once.Do(func() { w.first <- r.Method + " " + r.URL.Path + " " + string(sent) })
		if w.fails {
			code, body = http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`
		}
	}
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// TestNominatesBeforeBinding has the API be told of a pod's node before what binding waits for, and only where it
// waits: who is bound at once needs no second write. A pod is bound where nobody can be told, too.
func TestNominatesBeforeBinding(t *testing.T) {
	for name, c := range map[string]struct{ permits, prepares, fails bool }{
		"permit": {permits: true}, "preparation": {prepares: true}, "both": {permits: true, prepares: true}, "neither": {},
		"refused": {prepares: true, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			api := &told{first: make(chan string, 1), fails: c.fails}
			plugin := &slow{permits: c.permits, prepares: c.prepares, nominated: api, seen: make(chan string, 2)}
			w := newBenchOf(t, 1, api, func(b *bench) fwk.Plugin { plugin.binder = binder{b}; return plugin })
			w.run(t, func(ctx context.Context) {
				w.add(ctx)
				w.all.Wait()
			})
			const want = `PATCH /api/v1/namespaces/default/pods/pod-1/status {"metadata":{"uid":"pod-1"},"status":{"nominatedNodeName":"node-0"}}`
			writes := int32(0)
			if c.permits || c.prepares {
				writes = 1
				if got := <-plugin.seen; got != want {
					t.Errorf("when binding waits, %s is told", got)
				}
			}
			if got := api.count.Load(); got != writes {
				t.Errorf("%d writes nominate, want %d", got, writes)
			}
		})
	}
}

// fragile is a binder that panics once at each point, for the first pod.
type fragile struct {
	binder

	at   string
	done atomic.Bool
}

func (f *fragile) point(at string, pod *corev1.Pod) *fwk.Status {
	if at == f.at && pod.Name == "pod-1" && f.done.CompareAndSwap(false, true) {
		panic("at " + at)
	}
	return nil
}

func (f *fragile) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ fwk.NodeInfo) *fwk.Status {
	return f.point("Filter", pod)
}

func (f *fragile) Reserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	return f.point("Reserve", pod)
}

func (f *fragile) Unreserve(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	if f.at != "Filter" {
		panic("at Unreserve, too")
	}
}

func (f *fragile) Permit(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.Status, time.Duration) {
	return f.point("Permit", pod), 0
}

func (f *fragile) PreBindPreFlight(context.Context, fwk.CycleState, *corev1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	return nil, nil
}

func (f *fragile) PreBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) *fwk.Status {
	return f.point("PreBind", pod)
}

func (f *fragile) Bind(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	f.point("Bind", pod)
	return f.binder.Bind(ctx, state, pod, node)
}

func (f *fragile) PostBind(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) {
	f.point("PostBind", pod)
}

// TestPanics has a plugin panic wherever it can, in goroutines of its own, too: the pod waits and is bound by another
// attempt, others are bound meanwhile, and each has its place once.
func TestPanics(t *testing.T) {
	for _, at := range []string{"Filter", "Reserve", "Permit", "PreBind", "Bind", "PostBind"} {
		t.Run(at, func(t *testing.T) {
			plugin := &fragile{at: at}
			w := newBenchOf(t, 200, &told{first: make(chan string, 1)}, func(b *bench) fwk.Plugin { plugin.binder = binder{b}; return plugin })
			w.run(t, func(ctx context.Context) {
				w.add(ctx)
				w.add(ctx)
				w.all.Wait()
			})
			if !plugin.done.Load() {
				t.Error("it has not panicked")
			}
			w.s.cache.Update(w.s.snapshot)
			all, _ := w.s.snapshot.NodeInfos().List()
			pods := 0
			for _, n := range all {
				pods += len(n.GetPods())
			}
			if pods != 2 {
				t.Errorf("%d pods are on nodes", pods)
			}
		})
	}
}

// TestBindingsAtOnce has a hundred pods wait for a node while nothing that is written is answered: as many bindings as
// may be are written, and each that is answered lets the next one be.
func TestBindingsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 100
		w := newBenchWith(t, 10, nil)
		began, answers := make(chan struct{}, pods), make(chan struct{})
		w.write = func(*corev1.Pod) (bool, error) {
			began <- struct{}{}
			<-answers
			return true, nil
		}
		w.run(t, func(ctx context.Context) {
			for range pods {
				w.add(ctx)
			}
			for range atOnce {
				<-began
			}
			for i := range pods {
				select {
				case <-began:
					t.Errorf("after %d answers one more is written than may be", i)
				default:
				}
				answers <- struct{}{}
				if i < pods-atOnce {
					<-began
				}
			}
			w.all.Wait()
		})
		w.s.writer.out.queue.ShutDown()
		w.s.groupWriter.out.queue.ShutDown()
	})
}

// TestFirstNode has a pod come where there is no node: nothing but a node is a reason to try again.
func TestFirstNode(t *testing.T) {
	w := newBench(t, 0)
	ctx := t.Context()
	w.add(ctx)
	if !step(ctx, w.s) {
		t.Fatal("no pod is attempted")
	}
	waits := func(what string, wantBackoff, wantUnschedulable int) {
		t.Helper()
		if _, backoff, unschedulable, _ := w.s.queue.Counts(); backoff != wantBackoff || unschedulable != wantUnschedulable {
			t.Errorf("%s: %d pods are attempted again, and %d wait; want %d and %d", what, backoff, unschedulable, wantBackoff, wantUnschedulable)
		}
	}
	waits("without a node", 0, 1)
	other := w.pod()
	other.Spec.NodeName = "somewhere"
	w.s.podChanged(ctx, nil, other)
	waits("when a pod of another scheduler is placed", 0, 1)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	w.s.cache.SetNode(n)
	w.s.queue.Happened(ctx, fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, nil, n)
	waits("with a node", 1, 0)
}

// TestStopsBetweenBindings has the scheduler stop while bindings are not answered: those that have begun are brought to
// their end, and none begins that waits for its turn.
func TestStopsBetweenBindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newBenchWith(t, 10, nil)
		var began atomic.Int32
		answers := make(chan struct{})
		w.write = func(*corev1.Pod) (bool, error) {
			began.Add(1)
			<-answers
			return false, nil
		}
		w.run(t, func(ctx context.Context) {
			for range 100 {
				w.add(ctx)
			}
			synctest.Wait()
			context.AfterFunc(ctx, func() {
				time.Sleep(time.Minute)
				close(answers)
			})
		})
		if n := began.Load(); n != atOnce {
			t.Errorf("%d bindings are written, want %d", n, atOnce)
		}
		w.s.writer.out.queue.ShutDown()
		w.s.groupWriter.out.queue.ShutDown()
	})
}
