package queue_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/queue"
)

func podIn(namespace, name string, priority int32) *corev1.Pod {
	p := pod(name, priority)
	p.Namespace, p.UID = namespace, types.UID(namespace+"/"+name)
	return p
}

// served attempts the pod that is next, which takes as long as its namespace has it take, and says whose it was.
func served(q *queue.Queue, took map[string]time.Duration) string {
	p := q.Pop()
	namespace := p.Pod().Namespace
	time.Sleep(took[namespace])
	q.Spent(namespace, took[namespace])
	q.Finish(p.Pod().UID)
	return namespace
}

// TestShares has several namespaces each have pods, first in the queue and of more priority, that take a second each:
// the pods of another one wait for one of each at most.
func TestShares(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		took := map[string]time.Duration{"other": 5 * time.Millisecond}
		for n := range 4 {
			slow := fmt.Sprint("slow-", n)
			took[slow] = time.Second
			for i := range 50 {
				q.Add(t.Context(), podIn(slow, fmt.Sprint(i), 10))
			}
		}
		for i := range 100 {
			q.Add(t.Context(), podIn("other", fmt.Sprint(i), 0))
		}
		before, left := 0, 100
		for left > 0 {
			if served(q, took) == "other" {
				left--
			} else {
				before++
			}
		}
		if before > 4 {
			t.Errorf("%d pods that take long are attempted before the last of the others", before)
		}
		counts(t, q, 200-before, 0, 0, 0)
		for range 200 - before {
			served(q, took)
		}
		counts(t, q, 0, 0, 0, 0)
	})
}

// TestSharesOfAll has pods that take long be attempted for half of the time at most, and for some of it, while others
// never cease to come.
func TestSharesOfAll(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		took := map[string]time.Duration{"other": 9 * time.Millisecond, "slow-0": time.Second, "slow-1": time.Second}
		for i := range 100 {
			q.Add(t.Context(), podIn("slow-0", fmt.Sprint(i), 0))
			q.Add(t.Context(), podIn("slow-1", fmt.Sprint(i), 0))
		}
		spent := map[string]time.Duration{}
		for i := range 10_000 {
			q.Add(t.Context(), podIn("other", fmt.Sprint(i), 0))
			q.Add(t.Context(), podIn("other", fmt.Sprint(i, "-2"), 0))
			n := served(q, took)
			spent[n] += took[n]
		}
		slow := spent["slow-0"] + spent["slow-1"]
		if slow > spent["other"]+3*time.Second || slow < spent["other"]/2 {
			t.Errorf("it is spent on pods that take long %s, on others %s", slow, spent["other"])
		}
		if d := (spent["slow-0"] - spent["slow-1"]).Abs(); d > 2*time.Second {
			t.Errorf("one namespace has %s, one %s", spent["slow-0"], spent["slow-1"])
		}
	})
}

// TestAside has pods that were put aside change, be removed, and be attempted where nobody else waits.
func TestAside(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		took := map[string]time.Duration{"slow": time.Minute, "other": time.Millisecond}
		low := podIn("slow", "low", 1)
		q.Add(t.Context(), podIn("slow", "first", 9))
		q.Add(t.Context(), low)
		q.Add(t.Context(), podIn("slow", "gone", 2))
		q.Add(t.Context(), podIn("slow", "mid", 2))
		served(q, took)
		q.Add(t.Context(), podIn("other", "x", 0))
		if n := served(q, took); n != "other" {
			t.Errorf("a pod of %s is next", n)
		}
		high := low.DeepCopy()
		*high.Spec.Priority = 3
		q.Update(t.Context(), low, high, nil)
		q.Delete(podIn("slow", "gone", 2))
		counts(t, q, 2, 0, 0, 0)
		pop(t, q, "low")
		pop(t, q, "mid")
		counts(t, q, 0, 0, 0, 0)
	})
}

// hinting is a queue with hints of the test's own.
func hinting(all map[string][]queue.Hint, gates ...fwk.PreEnqueuePlugin) *queue.Queue {
	return queue.New(queue.Options{
		Less:       func(a, b fwk.QueuedEntityInfo) bool { return a.GetTimestamp().Before(b.GetTimestamp()) },
		PreEnqueue: map[string][]fwk.PreEnqueuePlugin{profile: gates}, Hints: all, Nominator: queue.NewNominator(),
		FirstBackoff: time.Second, LastBackoff: 10 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
}

// TestAskedLong has a plugin take long to say what an event is to pods: those that it is not asked about in time are
// attempted, and the queue is free again.
func TestAskedLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		q := hinting(map[string][]queue.Hint{profile: {{Plugin: "slow", Event: nodeAdd, Worth: func(klog.Logger, *corev1.Pod, any, any) (fwk.QueueingHint, error) {
			asked++
			time.Sleep(90 * time.Millisecond)
			return fwk.QueueSkip, nil
		}}}})
		for i := range 100 {
			q.Add(t.Context(), pod(fmt.Sprint(i), 0))
			reject(t, q, q.Pop(), "slow")
		}
		q.Happened(t.Context(), nodeAdd, nil, node("n"))
		if asked > 3 {
			t.Errorf("it is asked about %d pods", asked)
		}
		counts(t, q, 0, 100-asked, asked, 0)
	})
}

// TestAmongProfiles has two profiles whose hints of the same number are of different plugins: which pods one is to be
// asked about is not what the other is.
func TestAmongProfiles(t *testing.T) {
	among := func(names ...types.NamespacedName) fwk.PreQueueingHintFn {
		return func(klog.Logger, any, any) (fwk.PreQueueingHintResult, error) {
			return fwk.PreQueueingHintResult{Pods: names}, nil
		}
	}
	for range 20 { // profiles are asked in any order
		q := hinting(map[string][]queue.Hint{
			profile: {{Plugin: "p", Event: nodeAdd, Among: among(types.NamespacedName{Namespace: "default", Name: "a"})}},
			"other": {{Plugin: "p", Event: nodeAdd, Among: among(types.NamespacedName{Namespace: "default", Name: "b"})}},
		})
		b := pod("b", 0)
		b.Spec.SchedulerName = "other"
		for _, p := range []*corev1.Pod{pod("a", 0), b} {
			q.Add(t.Context(), p)
			reject(t, q, q.Pop(), "p")
		}
		q.Happened(t.Context(), nodeAdd, nil, node("n"))
		if _, backoff, _, _ := q.Counts(); backoff != 2 {
			t.Fatalf("%d of 2 pods are attempted again", backoff)
		}
	}
}

// asks counts how often a gate is asked.
type asks struct {
	gate

	count int
}

func (a *asks) PreEnqueue(ctx context.Context, p *corev1.Pod) *fwk.Status {
	a.count++
	return a.gate.PreEnqueue(ctx, p)
}

// TestGatesByHint has those that are kept away not be asked about again where the plugin's hint says that an event is
// nothing to them.
func TestGatesByHint(t *testing.T) {
	a := &asks{}
	q := hinting(map[string][]queue.Hint{profile: {{Plugin: "gate", Event: nodeAdd, Worth: func(_ klog.Logger, p *corev1.Pod, _, after any) (fwk.QueueingHint, error) {
		if after.(*corev1.Node).Name == p.Name {
			return fwk.Queue, nil
		}
		return fwk.QueueSkip, nil
	}}}}, a)
	for i := range 100 {
		p := pod(fmt.Sprint(i), 0)
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		q.Add(t.Context(), p)
	}
	a.count = 0
	q.Happened(t.Context(), nodeAdd, nil, node("7"))
	if a.count != 1 {
		t.Errorf("the gate is asked %d times", a.count)
	}
}
