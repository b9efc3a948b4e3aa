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
	"time"

	corev1 "k8s.io/api/core/v1"
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
