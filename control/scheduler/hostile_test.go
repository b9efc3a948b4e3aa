package scheduler

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/config"
	"github.com/berth-node/berth/control/scheduler/profile"
)

// endless is a binder that looks at nodes for the first pod without end, from one node on.
type endless struct {
	binder

	suits int32 // nodes that it says of that they suit, before
	at    string
	seen  atomic.Int32
	tries atomic.Int32
}

// PreFilter implements [fwk.PreFilterPlugin].
func (e *endless) PreFilter(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	return nil, e.wait(ctx, "PreFilter", pod)
}

// PreFilterExtensions implements [fwk.PreFilterPlugin].
func (*endless) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter implements [fwk.FilterPlugin].
func (e *endless) Filter(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, _ fwk.NodeInfo) *fwk.Status {
	if pod.Name == "pod-1" && e.at == "Filter" && e.seen.Add(1) <= e.suits {
		return nil
	}
	return e.wait(ctx, "Filter", pod)
}

// PreScore implements [fwk.PreScorePlugin].
func (e *endless) PreScore(ctx context.Context, _ fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	return e.wait(ctx, "PreScore", pod)
}

func (e *endless) wait(ctx context.Context, at string, pod *corev1.Pod) *fwk.Status {
	if at != e.at || pod.Name != "pod-1" {
		return nil
	}
	e.tries.Add(1)
	<-ctx.Done()
	return fwk.AsStatus(ctx.Err())
}

// TestLongAttempt has a plugin take as long for one pod as it may: the attempt ends, all other pods are bound, and the
// pod is told of why it waits, or comes to one of the nodes that were found by then.
func TestLongAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		at    string
		suits int32
		bound bool
	}{
		"before nodes": {at: "PreFilter"}, "at the first node": {at: "Filter"},
		"at the third node": {at: "Filter", suits: 2, bound: true}, "when nodes are compared": {at: "PreScore", bound: true},
	} {
		t.Run(name, func(t *testing.T) {
			plugin := &endless{at: c.at, suits: c.suits}
			w := newBenchOf(t, 50, &told{first: make(chan string, 1)}, func(b *bench) fwk.Plugin { plugin.binder = binder{b}; return plugin })
			w.s.search.limit = 40 * time.Millisecond
			w.run(t, func(ctx context.Context) {
				for range 20 {
					w.add(ctx)
				}
				if !c.bound {
					w.all.Done() // it is never bound
				}
				w.all.Wait()
			})
			if plugin.tries.Load() == 0 {
				t.Error("no attempt has taken long")
			}
			if c.bound {
				return
			}
			w.s.writer.out.mu.Lock()
			defer w.s.writer.out.mu.Unlock()
			if n := w.s.writer.out.latest["pod-1"]; n == nil || n.condition.Reason != corev1.PodReasonSchedulerError || n.condition.Message != errTooLong.Error() {
				t.Errorf("it is told of the pod: %+v", n)
			}
		})
	}
}

// TestLongMessage has each node have a reason of its own against a pod: what is told of the pod is bounded.
func TestLongMessage(t *testing.T) {
	w := newBench(t, 1)
	w.add(t.Context())
	q := w.s.queue.Pop()
	rejection := profile.NewRejection(5000)
	for i := range 5000 {
		rejection.Statuses.Set(fmt.Sprint(i), fwk.NewStatus(fwk.Unschedulable, fmt.Sprintf("node(s) had untolerated taint(s) – %d", i)))
	}
	p := w.s.profiles[config.DefaultScheduler]
	w.s.giveBack(t.Context(), &try{profile: p, queued: q, pod: q.Pod()}, nil, nil, nil, corev1.PodReasonUnschedulable, rejection.Message())
	message := w.s.writer.out.latest["pod-1"].condition.Message
	if len(message) > maxMessage || !strings.HasPrefix(message, "0/5000 nodes are available: ") || !strings.HasSuffix(message, " ...") {
		t.Errorf("%d bytes: %.100s", len(message), message)
	}
}

// TestIncompleteGang has a gang of thousands of pods never be complete: pods that come, of others and of the gang, cost
// as much as without it.
func TestIncompleteGang(t *testing.T) {
	cost := func(waiting int, group string) float64 {
		w := newGangWorld(t, 1)
		w.node(1)
		w.group("gang", 1_000_000)
		for range waiting {
			w.pod("gang")
		}
		return testing.AllocsPerRun(20, func() {
			w.pod(group)
			if group == "" {
				w.s.queue.Finish(w.s.queue.Pop().Pod().UID)
			}
		})
	}
	for _, group := range []string{"", "gang"} {
		few, many := cost(10, group), cost(2000, group)
		if many > few+100 {
			t.Errorf("a pod of group %q costs %.0f allocations where 10 pods of a gang wait, and %.0f where 2000 do", group, few, many)
		}
	}
}

// TestHopelessGang has no pod of a gang fit: when that is known of so many that the others are not enough, no node is
// looked for for these. All of them wait, and say why.
func TestHopelessGang(t *testing.T) {
	w := newGangWorld(t, 1)
	w.node(1)
	w.group("gang", 100)
	for range 100 {
		w.podWith("gang", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"there": "is-none"} })
	}
	w.settle(t.Context())
	w.check("settled")
	all := w.s.writer.out.latest
	looked := 0
	for uid := range w.alive {
		n := all[uid]
		if n == nil || n.condition.Message == "" {
			t.Fatalf("pod %s is not told of", uid)
		}
		if strings.Contains(n.condition.Message, "node affinity/selector") {
			looked++
		}
	}
	if looked != 1 {
		t.Errorf("nodes are looked at for %d pods", looked)
	}
}

// TestGangCount has how many pods of a group are bound be what they come to, whatever is told of them, and how often.
func TestGangCount(t *testing.T) {
	w := newGangWorld(t, 1)
	w.group("gang", 10)
	key := cache.ObjectName{Namespace: "default", Name: "gang"}
	for range 3 {
		w.pod("gang")
	}
	bound := map[types.UID]bool{}
	for range 2000 {
		for uid, pod := range w.alive { // any of them
			next := *pod
			next.Spec.NodeName = []string{"", "node"}[w.random.IntN(2)]
			if w.random.IntN(4) == 0 {
				next.Status.Phase = corev1.PodFailed
			}
			w.s.groups.Set(&next)
			delete(bound, uid)
			if next.Spec.NodeName != "" && next.Status.Phase == "" {
				bound[uid] = true
			}
			break
		}
		if got := w.s.groups.Bound(key); got != len(bound) {
			t.Fatalf("%d pods are bound, want %d", got, len(bound))
		}
	}
}
