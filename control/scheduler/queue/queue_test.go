package queue_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster"
	"github.com/berth-node/berth/control/scheduler/queue"
)

const profile = "default-scheduler"

func pod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Priority: &priority, SchedulerName: profile},
	}
}

// gate keeps pods away whose gates are not all gone.
type gate struct{}

func (gate) Name() string { return "gate" }

func (gate) PreEnqueue(_ context.Context, p *corev1.Pod) *fwk.Status {
	if len(p.Spec.SchedulingGates) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "gated")
	}
	return nil
}

var (
	nodeAdd = fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}
	podGone = fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}
	ungated = fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodSchedulingGatesEliminated}
)

// newQueue is a queue with a plugin that wants another node of a good name, and one that waits for pods to be gone.
func newQueue() *queue.Queue { return queue.New(options()) }

func options() queue.Options {
	return queue.Options{
		Less: func(a, b fwk.QueuedEntityInfo) bool {
			if a.GetPriority() != b.GetPriority() {
				return a.GetPriority() > b.GetPriority()
			}
			return a.GetTimestamp().Before(b.GetTimestamp())
		},
		PreEnqueue: map[string][]fwk.PreEnqueuePlugin{profile: {gate{}}},
		Hints: map[string][]queue.Hint{profile: {
			{Plugin: "fit", Event: nodeAdd, Worth: func(_ klog.Logger, _ *corev1.Pod, _, after any) (fwk.QueueingHint, error) {
				if after.(*corev1.Node).Name == "good" {
					return fwk.Queue, nil
				}
				return fwk.QueueSkip, nil
			}},
			{Plugin: "wait", Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}},
			{Plugin: "gate", Event: ungated},
		}},
		Nominator: queue.NewNominator(), FirstBackoff: time.Second, LastBackoff: 10 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// run calls f with a queue that runs, in time that passes only when all wait.
func run(t *testing.T, f func(t *testing.T, q *queue.Queue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		ctx, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { q.Run(ctx) })
		f(t, q)
		stop()
		group.Wait()
		if q.Pop() != nil {
			t.Error("a queue that has ended hands out a pod")
		}
	})
}

func pop(t *testing.T, q *queue.Queue, want string) *queue.Pod {
	t.Helper()
	p := q.Pop()
	if p.Pod().Name != want {
		t.Fatalf("%s is next, want %s", p.Pod().Name, want)
	}
	return p
}

func reject(t *testing.T, q *queue.Queue, p *queue.Pod, plugin string) {
	t.Helper()
	p.Reject(sets.New(plugin), nil)
	q.GiveBack(t.Context(), p, p.Info(), nil)
}

func counts(t *testing.T, q *queue.Queue, want ...int) {
	t.Helper()
	synctest.Wait()
	active, backoff, unschedulable, gated := q.Counts()
	if got := []int{active, backoff, unschedulable, gated}; !slices.Equal(got, want) {
		t.Errorf("active, backoff, unschedulable, gated: %v, want %v", got, want)
	}
}

func TestPriority(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("low", 1))
		q.Add(t.Context(), pod("high", 2))
		q.Add(t.Context(), pod("high", 2))
		pop(t, q, "high")
		pop(t, q, "low")
		counts(t, q, 0, 0, 0, 0)
	})
}

// Only an event that its plugin cares for has a pod that was rejected be attempted again.
func TestHints(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("a", 0))
		reject(t, q, pop(t, q, "a"), "fit")
		q.Happened(t.Context(), podGone, pod("x", 0), nil)
		q.Happened(t.Context(), nodeAdd, nil, node("bad"))
		counts(t, q, 0, 0, 1, 0)
		q.Happened(t.Context(), nodeAdd, nil, node("good"))
		counts(t, q, 0, 1, 0, 0)
		if p := pop(t, q, "a"); p.GetAttempts() != 2 || p.GetUnschedulableCount() != 1 {
			t.Errorf("%d attempts, of them %d rejected", p.GetAttempts(), p.GetUnschedulableCount())
		}
	})
}

// What happens during an attempt counts when the pod comes back.
func TestMeanwhile(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("a", 0))
		q.Add(t.Context(), pod("b", 0))
		a, b := q.Pop(), q.Pop()
		q.Happened(t.Context(), nodeAdd, nil, node("good"))
		reject(t, q, a, "fit")
		reject(t, q, b, "wait")
		counts(t, q, 0, 1, 1, 0)
		again := q.Pop()
		reject(t, q, again, "fit")
		counts(t, q, 0, 0, 2, 0)
	})
}

// A pod whose plugin has waited for an event is attempted at once, whatever its backoff.
func TestPending(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("a", 0))
		p := q.Pop()
		p.Reject(nil, sets.New("wait"))
		q.GiveBack(t.Context(), p, p.Info(), nil)
		q.Happened(t.Context(), podGone, pod("x", 0), nil)
		counts(t, q, 1, 0, 0, 0)
	})
}

// A pod that was not attempted for an error comes back by itself, each time later.
func TestErrors(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("a", 0))
		var waits []time.Duration
		for range 6 {
			p := q.Pop()
			q.GiveBack(t.Context(), p, p.Info(), nil)
			counts(t, q, 0, 1, 0, 0)
			began := time.Now()
			pop(t, q, "a")
			waits = append(waits, time.Since(began))
			q.GiveBack(t.Context(), p, p.Info(), nil)
		}
		if want := []time.Duration{time.Second, 4 * time.Second, 10 * time.Second}; !slices.Equal(waits[:3], want) {
			t.Errorf("waits %v, want first %v", waits, want)
		}
	})
}

// Gated pods do not come to the queue before what gates them says so.
func TestGates(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		gated := pod("a", 0)
		gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		q.Add(t.Context(), gated)
		q.Happened(t.Context(), nodeAdd, nil, node("good"))
		counts(t, q, 0, 0, 0, 1)
		free := pod("a", 0)
		q.Update(t.Context(), gated, free, []fwk.ClusterEvent{ungated})
		pop(t, q, "a")
	})
}

// Nothing waits for ever.
func TestStale(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("a", 0))
		began := time.Now()
		reject(t, q, pop(t, q, "a"), "fit")
		pop(t, q, "a")
		if waited := time.Since(began); waited < 5*time.Minute || waited > 10*time.Minute {
			t.Errorf("it comes back after %v", waited)
		}
	})
}

// A pod that goes away, or gets a node, during its attempt does not come back.
func TestGone(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		a := pod("a", 0)
		q.Add(t.Context(), a)
		p := q.Pop()
		q.Done(a.UID)
		q.Delete(a)
		q.GiveBack(t.Context(), p, p.Info(), nil)
		counts(t, q, 0, 0, 0, 0)
		b := pod("b", 0)
		q.Add(t.Context(), b)
		q.Delete(b)
		counts(t, q, 0, 0, 0, 0)
	})
}

// Of an attempt that goes on for long not all events are kept: its pod is attempted again.
func TestManyEvents(t *testing.T) {
	run(t, func(t *testing.T, q *queue.Queue) {
		q.Add(t.Context(), pod("a", 0))
		p := q.Pop()
		for range 20_000 {
			q.Happened(t.Context(), nodeAdd, nil, node("bad"))
		}
		reject(t, q, p, "fit")
		counts(t, q, 0, 1, 0, 0)
	})
}

func TestNominator(t *testing.T) {
	n := queue.NewNominator()
	info, err := cluster.NewPodInfo(pod("a", 0))
	if err != nil {
		t.Fatal(err)
	}
	n.AddNominatedPod(klog.Logger{}, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "x"})
	n.UpdateNominatedPod(klog.Logger{}, info.GetPod(), info)
	if n.Node("a") != "x" || len(n.NominatedPodsForNode("x")) != 1 {
		t.Error("an update that says nothing of it has lost the node")
	}
	n.AddNominatedPod(klog.Logger{}, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride})
	if !n.Empty() {
		t.Error("a pod that is nominated no more is there")
	}
}

// TestGoneWithRoom has a pod be gone while it is attempted: no room is kept for it, whatever the attempt has come to.
func TestGoneWithRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		q := queue.New(o)
		q.Add(t.Context(), pod("a", 0))
		p := pop(t, q, "a")
		p.Reject(sets.New("fit"), nil)
		q.Delete(p.Pod())
		q.GiveBack(t.Context(), p, p.Info(), &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "x"})
		if !o.Nominator.Empty() {
			t.Error("room is kept for a pod that is gone")
		}
	})
}

// TestToldRoom has the API say where pods are to come to: room is kept for those that are about to be attempted.
func TestToldRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options()
		q := queue.New(o)
		told := func(name string, gates ...corev1.PodSchedulingGate) *corev1.Pod {
			p := pod(name, 0)
			p.Status.NominatedNodeName, p.Spec.SchedulingGates = "x", gates
			return p
		}
		q.Add(t.Context(), told("next"))
		q.Add(t.Context(), told("gated", corev1.PodSchedulingGate{Name: "g"}))
		if o.Nominator.Node("next") != "x" || o.Nominator.Node("gated") != "" {
			t.Errorf("room is kept for next on %q, for gated on %q", o.Nominator.Node("next"), o.Nominator.Node("gated"))
		}
		free := told("gated")
		q.Update(t.Context(), told("gated", corev1.PodSchedulingGate{Name: "g"}), free, []fwk.ClusterEvent{ungated})
		if o.Nominator.Node("gated") != "x" {
			t.Error("no room is kept for a pod without gates")
		}
		ends := told("gated")
		ends.DeletionTimestamp = new(metav1.Now())
		q.Update(t.Context(), free, ends, nil)
		if o.Nominator.Node("gated") != "" {
			t.Error("room is kept for a pod that ends")
		}
		// One that waits for something else, and is told of then.
		p := pop(t, q, "next")
		o.Nominator.DeleteNominatedPodIfExists(p.Pod())
		reject(t, q, p, "fit")
		q.Update(t.Context(), pod("next", 0), told("next"), nil)
		if o.Nominator.Node("next") != "" {
			t.Error("room is kept for a pod that waits for something else")
		}
	})
}
