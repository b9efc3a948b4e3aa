package pod

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/status"
)

// deletions are the pods of which was said that nothing is left.
type deletions struct {
	*status.Writer
	mu   sync.Mutex
	uids []types.UID
}

func (d *deletions) Delete(pod *corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uids = append(d.uids, pod.UID)
	d.Writer.Delete(pod)
}

func (d *deletions) told(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.uids, uid)
}

// deleting is a pod of an API server that is given a time by which it has to end.
func deleting(pod *corev1.Pod, grace int64) *corev1.Pod {
	p := pod.DeepCopy()
	p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second)))
	p.DeletionGracePeriodSeconds = &grace
	return p
}

// hearing restarts the agent with a writer of statuses that keeps what it was told.
func hearing(n *testNode) *deletions {
	n.t.Helper()
	d := &deletions{Writer: status.NewWriter()}
	n.restartWith(func(c *Config) { c.Statuses = d })
	return d
}

// TestDeletedByAPI: the pod ends within the grace that it is given, is known until nothing of it is left, and is then
// said to be gone; it does not run again though it is still there.
func TestDeletedByAPI(t *testing.T) {
	onNode(t, func(n *testNode) {
		said := hearing(n)
		n.rt.term["main"] = -1
		p := podtest.New("web")
		fromAPI(p)
		n.apply(p)
		n.is("web", "Running main:0:running")
		n.apply(deleting(p, 20))
		n.pass(19 * time.Second)
		if got := n.pod("web"); got.DeletionTimestamp == nil || said.told(p.UID) {
			t.Errorf("deletion %v, said to be gone %t", got.DeletionTimestamp, said.told(p.UID))
		}
		n.pass(2 * time.Second)
		n.gone(p)
		if !said.told(p.UID) {
			t.Error("nobody was told that it is gone")
		}
		n.apply(deleting(p, 20)) // as a list says it again
		n.gone(p)
		n.remove(p)
		n.gone(p)
	})
}

// TestDeletedSooner: who asks again with less grace is heard, who asks with more is not.
func TestDeletedSooner(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.term["main"] = -1
		p := podtest.New("web")
		fromAPI(p)
		n.apply(p)
		n.apply(deleting(p, 60))
		n.pass(5 * time.Second)
		n.apply(deleting(p, 10))
		n.apply(deleting(p, 50))
		n.pass(9 * time.Second)
		if n.pod("web").DeletionTimestamp == nil {
			t.Error("the pod is not ending")
		}
		n.pass(2 * time.Second)
		n.gone(p)
	})
}

// TestDeletedWhileAway: an agent that was restarted goes on with the grace that was given, and says of a pod that
// never came here, or of which nothing is left, that it is gone.
func TestDeletedWhileAway(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.term["main"] = -1
		p, never := podtest.New("web"), podtest.New("never")
		fromAPI(p, never)
		n.apply(p)
		n.apply(deleting(p, 30))
		n.pass(20 * time.Second)
		n.stop()
		n.want[keyOf(never)] = deleting(never, 30)
		said := &deletions{Writer: status.NewWriter()}
		n.startWith(func(c *Config) { c.Statuses = said })
		if !said.told(never.UID) {
			t.Error("a pod that never was here is not said to be gone")
		}
		n.pass(9 * time.Second)
		if said.told(p.UID) {
			t.Error("the pod ended before its grace was over")
		}
		n.pass(2 * time.Second)
		n.gone(p)
		if !said.told(p.UID) {
			t.Error("nobody was told that it is gone")
		}
	})
}

// TestSameNameAgain: a pod that was deleted and made again never meets the one before it.
func TestSameNameAgain(t *testing.T) {
	for _, restart := range []bool{false, true} {
		onNode(t, func(n *testNode) {
			n.rt.term["main"] = 10 * time.Second
			old, next := podtest.New("web"), podtest.New("web", podtest.WithUID("next"))
			fromAPI(old, next)
			n.apply(old)
			if restart {
				n.stop()
				n.want[keyOf(next)] = next
				n.start()
			} else {
				n.apply(next)
			}
			n.pass(9 * time.Second)
			if got := n.pod("web"); got.UID != old.UID {
				t.Errorf("restart %t: %s runs beside the one before it", restart, got.UID)
			}
			n.pass(2 * time.Second)
			n.gone(old)
			n.is("web", "Running main:0:running")
		})
	}
}

// TestFinalPhase: a pod that has come to its end is not run again, whatever was lost of it; and one that the API server
// takes for ended ends.
func TestFinalPhase(t *testing.T) {
	onNode(t, func(n *testNode) {
		done := podtest.New("done", podtest.Policy(corev1.RestartPolicyNever))
		fromAPI(done)
		done.Status.Phase = corev1.PodSucceeded
		n.apply(done)
		if run := n.rt.called("RunPodSandbox"); len(run) > 0 {
			t.Errorf("it was run again: %v", run)
		}
		n.is("done", "Succeeded")

		p := podtest.New("web")
		fromAPI(p)
		n.apply(p)
		n.is("web", "Running main:0:running")
		failed := p.DeepCopy()
		failed.Status = *n.pod("web").Status.DeepCopy()
		failed.Status.Phase, failed.Status.Reason = corev1.PodFailed, "NodeLost"
		n.apply(failed)
		n.pass(time.Minute)
		n.is("web", "Failed(NodeLost) main:0:Error(143)")
		n.restart()
		n.is("web", "Failed(NodeLost) main:0:Error(143)")
		n.apply(deleting(failed, 1))
		n.pass(time.Minute)
		n.gone(p)
	})
}

// TestTimesOfAPI: an agent that was restarted keeps the times that the API server has.
func TestTimesOfAPI(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		fromAPI(p)
		n.apply(p)
		n.pass(time.Hour)
		known := n.pod("web").DeepCopy()
		n.stop()
		n.want[keyOf(p)] = known
		n.pass(time.Hour)
		n.start()
		now := n.pod("web")
		if !now.Status.StartTime.Equal(known.Status.StartTime) {
			t.Errorf("start time %v, was %v", now.Status.StartTime, known.Status.StartTime)
		}
		for i, c := range now.Status.Conditions {
			if was := known.Status.Conditions[i]; c.Type == was.Type && !c.LastTransitionTime.Equal(&was.LastTransitionTime) {
				t.Errorf("%s: %v, was %v", c.Type, c.LastTransitionTime, was.LastTransitionTime)
			}
		}
	})
}

// TestAPIPodsAreNotChangedHere: what is added to a pod of an API server is added there.
func TestAPIPodsAreNotChangedHere(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		fromAPI(p)
		n.apply(p)
		_, err := n.m.SetConditions(p.UID, []corev1.PodCondition{{Type: "a", Status: corev1.ConditionTrue}}, nil)
		if err == nil || !strings.Contains(err.Error(), "API server's") {
			t.Errorf("set conditions: %v", err)
		}
		more := p.DeepCopy()
		more.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "look", Image: p.Spec.Containers[0].Image},
		}}
		n.apply(more)
		n.is("web", "Running main:0:running look:0:running")
		synctest.Wait()
	})
}

// TestEndlessGrace: the API takes any number of seconds, also those that are more than a duration can be: they are
// long, and not over at once.
func TestEndlessGrace(t *testing.T) {
	for _, grace := range []int64{math.MaxInt64, math.MaxInt64 / int64(time.Second) * 2, 10_000_000_000} {
		onNode(t, func(n *testNode) {
			hearing(n)
			n.rt.term["main"] = 20 * time.Hour
			for _, p := range []*corev1.Pod{podtest.New("remote"), podtest.New("static")} {
				p.Spec.TerminationGracePeriodSeconds = &grace
				n.apply(p)
				n.is(p.Name, "Running main:0:running")
				if p.Name == "static" {
					n.remove(p)
				} else {
					last := p.DeepCopy()
					last.DeletionTimestamp, last.DeletionGracePeriodSeconds = new(metav1.Now()), &grace
					n.apply(fromAPI(last)...)
				}
				n.pass(19 * time.Hour)
				n.is(p.Name, "Running main:0:running")
				n.pass(2 * time.Hour)
				if got := n.rt.running(); len(got) > 0 {
					t.Errorf("%d: these run: %v", grace, got)
				}
			}
		})
	}
}
