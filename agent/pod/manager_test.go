package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
)

func TestPodRunsAndGoes(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.is("web", "Running main:0:running")
		if got, want := n.happened("web"), "Pulled Created Started"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
		if got := n.happened("web"); !strings.HasSuffix(got, "Killing") {
			t.Errorf("events %q", got)
		}
	})
}

// Some runtimes do not tell of containers with their sandbox.
func TestPlainRuntime(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.plain = true
		p := podtest.New("web", podtest.Containers("a", "b"))
		n.apply(p)
		n.is("web", "Running a:0:running b:0:running")
		n.rt.exit("a-0", 1)
		n.pass(time.Second)
		n.is("web", "Running a:1:running<Error(1) b:0:running")
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
	})
}

func TestCrashLoop(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		n.rt.exit("main-0", 3)
		n.pass(0)
		n.is("web", "Running main:1:running<Error(3)") // the first restart is at once
		for i, delay := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			delay *= time.Second
			id := n.rt.running()[0]
			n.rt.exit(id, 3)
			n.pass(delay - time.Second)
			if s := n.pod("web").Status.ContainerStatuses[0]; s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" ||
				s.LastTerminationState.Terminated.ExitCode != 3 || s.RestartCount != int32(i+1) {
				t.Fatalf("after exit %d: %+v", i+2, s)
			}
			want := "back-off " + delay.String() + " restarting failed container=main pod=web_default(web-uid)"
			if got := n.pod("web").Status.ContainerStatuses[0].State.Waiting.Message; got != want {
				t.Errorf("message %q, want %q", got, want)
			}
			n.pass(time.Second)
			if got := n.rt.running(); len(got) != 1 || got[0] == id {
				t.Fatalf("after a delay of %s these run: %v", delay, got)
			}
		}
		if got := n.message("web", "BackOff"); got != "Back-off restarting failed container main in pod web_default(web-uid)" {
			t.Errorf("event %q", got)
		}
		// One that has run for long starts over.
		n.pass(10 * time.Minute)
		n.rt.exit(n.rt.running()[0], 3)
		n.pass(0)
		n.is("web", "Running main:9:running<Error(3)")
		n.rt.exit(n.rt.running()[0], 3)
		n.pass(9 * time.Second)
		n.is("web", "Running main:9:CrashLoopBackOff<Error(3)")
		n.pass(time.Second)
		n.is("web", "Running main:10:running<Error(3)")
	})
}

func TestBackoffFromZero(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.Backoff.Initial, n.cfg.Backoff.Max = 0, time.Minute
		n.start()
		n.apply(podtest.New("web"))
		for range 20 {
			n.rt.exit(n.rt.running()[0], 1)
			n.pass(0)
		}
		n.is("web", "Running main:20:running<Error(1)")
	})
}

func TestRestartPolicies(t *testing.T) {
	for _, c := range []struct {
		policy corev1.RestartPolicy
		code   int32
		want   string
	}{
		{corev1.RestartPolicyAlways, 0, "Running main:1:running<Completed(0)"},
		{corev1.RestartPolicyAlways, 1, "Running main:1:running<Error(1)"},
		{corev1.RestartPolicyOnFailure, 0, "Succeeded main:0:Completed(0)"},
		{corev1.RestartPolicyOnFailure, 1, "Running main:1:running<Error(1)"},
		{corev1.RestartPolicyNever, 0, "Succeeded main:0:Completed(0)"},
		{corev1.RestartPolicyNever, 1, "Failed main:0:Error(1)"},
	} {
		onNode(t, func(n *testNode) {
			p := podtest.New("web", podtest.Policy(c.policy))
			n.apply(p)
			n.rt.exit("main-0", c.code)
			n.pass(0)
			n.is("web", c.want)
			over := !strings.HasPrefix(c.want, "Running")
			if n.cgroups.pods[p.UID] == over {
				t.Errorf("%s, %d: the cgroup is there: %t", c.policy, c.code, !over)
			}
			// A restart of the agent comes to the same.
			calls := len(n.rt.calls)
			n.restart()
			n.is("web", c.want)
			for _, call := range n.rt.calls[calls:] {
				if strings.Contains(call, "Container") || strings.Contains(call, "RunPod") {
					t.Errorf("%s, %d: the restarted agent calls %s", c.policy, c.code, call)
				}
			}
			n.remove(p)
			n.pass(time.Second)
			n.gone(p)
		})
	}
}

func TestInitContainers(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("one", "two"))
		n.apply(p)
		n.is("web", "Pending one:0:running two:0:PodInitializing main:0:PodInitializing")
		n.rt.exit("one-0", 1)
		n.pass(0)
		n.is("web", "Pending one:1:running<Error(1) two:0:PodInitializing main:0:PodInitializing")
		n.rt.exit("one-1", 1)
		n.pass(0)
		n.is("web", "Pending one:1:CrashLoopBackOff<Error(1) two:0:PodInitializing main:0:PodInitializing")
		n.pass(10 * time.Second)
		n.rt.exit("one-2", 0)
		n.pass(0)
		n.is("web", "Pending one:2:Completed(0)<Error(1) two:0:running main:0:PodInitializing")
		n.rt.exit("two-0", 0)
		n.pass(0)
		n.is("web", "Running one:2:Completed(0)<Error(1) two:0:Completed(0) main:0:running")
		n.restart()
		n.rt.exit("main-0", 0)
		n.pass(0)
		n.is("web", "Running one:2:Completed(0)<Error(1) two:0:Completed(0) main:1:running<Completed(0)")
	})
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("one"), podtest.Policy(corev1.RestartPolicyNever))
		n.apply(p)
		n.rt.exit("one-0", 7)
		n.pass(0)
		n.is("web", "Failed one:0:Error(7) main:0:PodInitializing")
		n.restart()
		n.is("web", "Failed one:0:Error(7) main:0:PodInitializing")
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
	})
}

func TestSidecars(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("a*", "init", "b*"), podtest.Policy(corev1.RestartPolicyNever))
		n.apply(p)
		n.is("web", "Pending a:0:running init:0:running b:0:PodInitializing main:0:PodInitializing")
		n.rt.exit("a-0", 1) // restarts while an init container runs
		n.pass(0)
		n.is("web", "Pending a:1:running<Error(1) init:0:running b:0:PodInitializing main:0:PodInitializing")
		n.rt.exit("init-0", 0)
		n.pass(0)
		n.is("web", "Running a:1:running<Error(1) init:0:Completed(0) b:0:running main:0:running")
		n.rt.exit("b-0", 0) // restarts although it succeeded
		n.pass(0)
		n.is("web", "Running a:1:running<Error(1) init:0:Completed(0) b:1:running<Completed(0) main:0:running")
		n.rt.exit("main-0", 0)
		n.pass(0)
		n.is("web", "Succeeded a:1:Error(143)<Error(1) init:0:Completed(0) b:1:Error(143)<Completed(0) main:0:Completed(0)")
		want := []string{"StopContainer b-1 30", "StopContainer a-1 30"}
		if got := n.rt.called("StopContainer"); !slices.Equal(got, want) {
			t.Errorf("stopped %v, want %v", got, want)
		}
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
	})
}

func TestDeletionOrder(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("a*", "b*"), podtest.Containers("x", "y"))
		n.rt.term["x"], n.rt.term["y"], n.rt.term["b"] = 3*time.Second, -1, time.Second
		p.Spec.TerminationGracePeriodSeconds = new(int64(8))
		n.apply(p)
		n.remove(p)
		if got := n.pod("web"); got.DeletionTimestamp == nil || *got.DeletionGracePeriodSeconds != 8 {
			t.Errorf("deletion of the pod: %v", got.DeletionTimestamp)
		}
		n.is("web", "Running a:0:running b:0:running x:0:running y:0:running")
		n.pass(7 * time.Second)
		n.is("web", "Running a:0:running b:0:running x:0:Error(143) y:0:running")
		n.pass(time.Second)
		n.is("web", "Running a:0:running b:0:running x:0:Error(143) y:0:Error(137)")
		n.pass(3 * time.Second)
		n.gone(p)
		calls := n.rt.called("StopContainer")
		slices.Sort(calls[:2])
		want := []string{"StopContainer x-0 8", "StopContainer y-0 8", "StopContainer b-0 2", "StopContainer a-0 2"}
		if !slices.Equal(calls, want) {
			t.Errorf("stopped %v, want %v", calls, want)
		}
	})
}

func TestReplace(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.term["main"] = 5 * time.Second
		old, next := podtest.New("web"), podtest.New("web", podtest.WithUID("next"))
		n.apply(old)
		n.apply(next)
		n.pass(4 * time.Second)
		if p := n.pod("web"); p.UID != old.UID || p.DeletionTimestamp == nil {
			t.Errorf("pod %s, deletion %v", p.UID, p.DeletionTimestamp)
		}
		n.pass(2 * time.Second)
		n.gone(old)
		n.is("web", "Running main:0:running")
		if p := n.pod("web"); p.UID != next.UID {
			t.Errorf("pod %s", p.UID)
		}
		// There and back again before the old one has ended: the last word counts.
		third := podtest.New("web", podtest.WithUID("third"))
		n.apply(third)
		n.apply(next)
		n.pass(6 * time.Second)
		n.is("web", "Running main:0:running")
		if p := n.pod("web"); p.UID != next.UID || p.DeletionTimestamp != nil {
			t.Errorf("pod %s", p.UID)
		}
		if got := n.rt.called("RunPodSandbox"); len(got) != 3 {
			t.Errorf("sandboxes %v", got)
		}
	})
}

func TestAgentRestartChangesNothing(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("side*"), podtest.Containers("a", "b"))
		hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"hello"}}}
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: hook}
		n.apply(p)
		n.rt.exit("b-0", 1)
		n.pass(0)
		n.rt.exit("b-1", 1)
		n.pass(5 * time.Second)
		n.is("web", "Running side:0:running a:0:running b:1:CrashLoopBackOff<Error(1)")
		before := n.pod("web")
		n.restart()
		n.is("web", "Running side:0:running a:0:running b:1:CrashLoopBackOff<Error(1)")
		after := n.pod("web")
		for i, c := range after.Status.Conditions {
			if b := before.Status.Conditions[i]; b.Status != c.Status {
				t.Errorf("condition %s was %s and is %s", c.Type, b.Status, c.Status)
			}
		}
		if !after.Status.StartTime.Equal(before.Status.StartTime) {
			t.Errorf("start time was %s and is %s", before.Status.StartTime, after.Status.StartTime)
		}
		n.pass(4 * time.Second)
		n.is("web", "Running side:0:running a:0:running b:1:CrashLoopBackOff<Error(1)")
		n.pass(time.Second)
		n.is("web", "Running side:0:running a:0:running b:2:running<Error(1)")
		if got := n.rt.called("ExecSync"); len(got) != 1 {
			t.Errorf("hooks %v", got)
		}
		// What exits while there is no agent is restarted by the next one.
		n.stop()
		n.rt.exit("a-0", 0)
		n.start()
		n.is("web", "Running side:0:running a:1:running<Completed(0) b:2:running<Error(1)")
	})
}

func TestReadyTimesSurviveRestart(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		before := n.pod("web").Status.Conditions
		n.pass(time.Hour)
		n.restart()
		for i, c := range n.pod("web").Status.Conditions {
			if !c.LastTransitionTime.Equal(&before[i].LastTransitionTime) {
				t.Errorf("condition %s became %s at %s, then at %s", c.Type, c.Status, before[i].LastTransitionTime, c.LastTransitionTime)
			}
		}
	})
}

func TestUnwantedPodsEnd(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("a*", "b*"))
		hook := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: hook}
		p.Spec.TerminationGracePeriodSeconds = new(int64(7))
		keep := podtest.New("keep", podtest.Containers("other"))
		n.apply(p, keep)
		n.stop()
		clear(n.want)
		n.want[keyOf(keep)] = keep
		n.start()
		n.pass(10 * time.Second)
		n.gone(p)
		n.is("keep", "Running other:0:running")
		if got := n.rt.called("ExecSync"); !slices.Equal(got, []string{"ExecSync main-0 bye"}) {
			t.Errorf("hooks %v", got)
		}
		got := n.rt.called("StopContainer")
		want := []string{"StopContainer main-0 7", "StopContainer b-0 7", "StopContainer a-0 7"}
		if !slices.Equal(got, want) {
			t.Errorf("stopped %v, want %v", got, want)
		}
	})
}

// What a pod has left behind goes even if the runtime knows nothing of it.
func TestLeftovers(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.stop()
		clear(n.want)
		clear(n.rt.sandboxes)
		clear(n.rt.containers)
		n.start()
		n.pass(time.Second)
		n.gone(p)
		if got := n.m.List(); len(got) != 0 {
			t.Errorf("pods are known: %v", got)
		}
	})
}

// A new pod under the name of one that was left behind starts after that has ended.
func TestReplaceAcrossRestart(t *testing.T) {
	onNode(t, func(n *testNode) {
		old, next := podtest.New("web"), podtest.New("web", podtest.WithUID("next"))
		n.rt.term["main"] = 5 * time.Second
		n.apply(old)
		n.stop()
		n.want[keyOf(next)] = next
		n.start()
		if p := n.pod("web"); p.UID != old.UID || p.DeletionTimestamp == nil {
			t.Errorf("pod %s, deletion %v", p.UID, p.DeletionTimestamp)
		}
		n.pass(6 * time.Second)
		n.gone(old)
		n.is("web", "Running main:0:running")
	})
}

// A pod that is asked for again while it is being removed starts over, even if the agent dies in between.
func TestAskedForAgainWhileEnding(t *testing.T) {
	for _, restart := range []bool{false, true} {
		onNode(t, func(n *testNode) {
			n.rt.term["main"] = 5 * time.Second
			p := podtest.New("web", podtest.Containers("main", "quick"))
			n.apply(p)
			n.remove(p)
			n.pass(2 * time.Second)
			if restart {
				n.stop()
				n.want[keyOf(p)] = p
				n.start()
			} else {
				n.apply(p)
			}
			if n.pod("web").DeletionTimestamp == nil {
				t.Errorf("restart %t: the pod does not end", restart)
			}
			n.pass(10 * time.Second)
			n.is("web", "Running main:0:running quick:0:running")
			if p := n.pod("web"); p.DeletionTimestamp != nil || len(n.rt.sandboxes) != 1 {
				t.Errorf("restart %t: deletion %v, sandboxes %v", restart, p.DeletionTimestamp, n.rt.sandboxes)
			}
		})
	}
}

// The grace that a pod was given goes on with the next agent.
func TestGraceSurvivesRestart(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.term["main"] = -1
		p := podtest.New("web")
		n.apply(p)
		n.remove(p)
		n.pass(20 * time.Second)
		n.restart()
		n.pass(11 * time.Second)
		n.gone(p)
	})
}

func TestSandboxDies(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Inits("one"))
		n.apply(p)
		n.rt.exit("one-0", 0)
		n.pass(0)
		n.is("web", "Running one:0:Completed(0) main:0:running")
		n.rt.loseAll(true)
		n.pass(0)
		n.is("web", "Running one:1:running<Completed(0) main:0:Error(255)")
		n.rt.exit("one-1", 0)
		n.pass(0)
		n.is("web", "Running one:1:Completed(0)<Completed(0) main:1:running<Error(255)")
		if !strings.Contains(n.happened("web"), "SandboxChanged") {
			t.Errorf("events %s", n.happened("web"))
		}
		if got := n.pod("web").Status.PodIP; got == "" {
			t.Error("the pod has no address")
		}
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
	})
	// Containers that live on in a dead sandbox end in good order first.
	onNode(t, func(n *testNode) {
		n.rt.term["main"] = 3 * time.Second
		n.apply(podtest.New("web"))
		n.rt.loseAll(false)
		n.pass(2 * time.Second)
		if got := n.rt.called("RunPodSandbox"); len(got) != 1 {
			t.Errorf("sandboxes %v", got)
		}
		n.pass(2 * time.Second)
		n.is("web", "Running main:1:running<Error(143)")
	})
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web", podtest.Policy(corev1.RestartPolicyNever)))
		n.rt.loseAll(true)
		n.pass(time.Minute)
		n.is("web", "Failed main:0:Error(255)")
	})
}

func TestOldContainersGo(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		for range 5 {
			n.rt.exit(n.rt.running()[0], 1)
			n.pass(10 * time.Minute)
		}
		if len(n.rt.containers) != 2 {
			t.Errorf("containers %v", n.rt.containers)
		}
		if n.rt.containers["main-4"] == nil || n.rt.containers["main-5"] == nil {
			t.Error("the last two containers are not there")
		}
		left, err := os.ReadDir(filepath.Join(n.cfg.RootDir, "pods", "web-uid", "containers", "main"))
		if err != nil || len(left) != 2 {
			t.Errorf("termination messages: %v, %v", left, err)
		}
	})
}

func TestLostEventsAreFound(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		n.pass(2 * time.Second)
		n.rt.locked(func() { n.rt.mute = true })
		n.rt.exit("main-0", 1)
		n.pass(time.Minute)
		n.is("web", "Running main:0:running")
		n.pass(5 * time.Minute)
		n.is("web", "Running main:1:running<Error(1)")
		if got := n.m.Missed(); got != 1 {
			t.Errorf("missed %d", got)
		}
	})
}

func TestEvict(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.rt.term["main"] = time.Second
		n.apply(p)
		err := n.m.Evict(p.UID, Eviction{Reason: "Evicted", Message: "The node was low on resource: memory.", GraceSeconds: 5, Conditions: []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		n.pass(0)
		n.is("web", "Running(Evicted) main:0:running")
		n.pass(2 * time.Second)
		n.is("web", "Failed(Evicted) main:0:Error(143)")
		if n.cgroups.pods[p.UID] {
			t.Error("the cgroup is still there")
		}
		if c := n.pod("web").Status.Conditions; c[len(c)-1].Type != corev1.DisruptionTarget || c[len(c)-1].LastTransitionTime.IsZero() {
			t.Errorf("conditions %v", c)
		}
		n.restart() // does not bring it back
		n.pass(time.Minute)
		n.is("web", "Failed(Evicted) main:0:Error(143)")
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
		if err := n.m.Evict(p.UID, Eviction{}); !errors.Is(err, errNoPod) {
			t.Errorf("evicting a pod that is gone: %v", err)
		}
	})
}

func TestHostPortsWaitTheirTurn(t *testing.T) {
	port := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}
	onNode(t, func(n *testNode) {
		a, b := podtest.New("a", port), podtest.New("b", port)
		n.apply(a)
		n.apply(b)
		n.is("b", "Pending(NodePorts) main:0:ContainerCreating")
		if msg := n.pod("b").Status.Message; !strings.Contains(msg, "8080/TCP is in use by pod default/a") {
			t.Errorf("message %q", msg)
		}
		n.remove(a)
		n.pass(time.Second)
		n.is("b", "Running main:0:running")
	})
	onNode(t, func(n *testNode) {
		a, b := podtest.New("a", port), podtest.New("b", port)
		n.apply(a, b)
		n.remove(b)
		if _, ok := n.m.Get("default", "b"); ok {
			t.Error("a pod that waits stays known when it is not wanted")
		}
	})
}

func TestSysctls(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "1"}}}
		}))
		n.is("web", "Failed(SysctlForbidden) main:0:ContainerCreating")
	})
}

func TestProbes(t *testing.T) {
	onNode(t, func(n *testNode) {
		asks := func(what string, failures int32) *corev1.Probe {
			return &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{what}}},
				PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: failures,
			}
		}
		p := podtest.New("web", func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = asks("started", 10), asks("lives", 2), asks("ready", 3)
			c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(3))
		})
		no := map[string]bool{"started": true, "ready": true}
		var mu sync.Mutex
		say := func(what string, ok bool) { mu.Lock(); defer mu.Unlock(); no[what] = !ok }
		n.rt.exec = func(id string, command []string) (int32, error) {
			mu.Lock()
			defer mu.Unlock()
			if no[command[0]] && id == "main-0" {
				return 1, nil
			}
			return 0, nil
		}
		is := func(started, ready bool) {
			t.Helper()
			if s := n.pod("web").Status.ContainerStatuses[0]; s.Ready != ready || *s.Started != started {
				t.Errorf("started %t, ready %t; want %t, %t", *s.Started, s.Ready, started, ready)
			}
		}
		n.apply(p)
		n.pass(4 * time.Second)
		is(false, false)
		if asked := n.rt.called("ExecSync"); slices.Contains(asked, "ExecSync main-0 ready") || slices.Contains(asked, "ExecSync main-0 lives") {
			t.Errorf("asked before the start: %v", asked)
		}
		say("started", true)
		n.pass(2 * time.Second)
		is(true, false)
		say("ready", true)
		n.pass(time.Second)
		is(true, true)
		say("ready", false)
		n.pass(time.Second)
		is(true, true) // not as often as the threshold says
		n.pass(3 * time.Second)
		is(true, false)
		if got := n.message("web", "Unhealthy"); got != "Startup probe failed: " {
			t.Errorf("event %q", got)
		}
		say("ready", true)
		n.pass(2 * time.Second)
		say("ready", false)
		n.restart()
		is(true, true) // by what is known
		say("ready", true)
		say("lives", false)
		n.pass(3 * time.Second)
		n.is("web", "Running main:1:running<Error(143)")
		if got := n.rt.called("StopContainer"); !slices.Equal(got, []string{"StopContainer main-0 3"}) {
			t.Errorf("stopped %v", got)
		}
		if got := n.message("web", "Killing"); got != "Container main failed liveness probe, will be restarted" {
			t.Errorf("event %q", got)
		}
	})
}

func TestMessages(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Policy(corev1.RestartPolicyNever), podtest.Containers("file", "logs"))
		p.Spec.Containers[1].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		n.apply(p)
		for _, c := range n.rt.containers {
			i := slices.IndexFunc(c.config.GetMounts(), func(m *runtimeapi.Mount) bool {
				return m.GetContainerPath() == corev1.TerminationMessagePathDefault
			})
			text := ""
			if c.GetMetadata().GetName() == "file" {
				text = strings.Repeat("x", 5000) + "end"
			}
			if err := os.WriteFile(c.config.GetMounts()[i].GetHostPath(), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
			line := "2026-01-01T00:00:00Z stderr F out of luck\n"
			if err := os.WriteFile(c.GetLogPath(), []byte(line), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n.rt.exit("file-0", 1)
		n.rt.exit("logs-0", 1)
		n.pass(0)
		for range 2 {
			s := n.pod("web").Status.ContainerStatuses
			if got := s[0].State.Terminated.Message; len(got) != 4096 || !strings.HasSuffix(got, "end") {
				t.Errorf("message of %d bytes", len(got))
			}
			if got := s[1].State.Terminated.Message; got != "out of luck\n" {
				t.Errorf("message %q", got)
			}
			n.restart()
		}
	})
}

// Who watches sees each pod come once and go once.
func TestWatchSeesOneLife(t *testing.T) {
	onNode(t, func(n *testNode) {
		ctx, cancel := context.WithCancel(context.Background())
		var got []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = n.m.Watch(ctx, func(typ watch.EventType, p *corev1.Pod) error {
				s := string(typ) + " " + describe(p)
				if p.DeletionTimestamp != nil {
					s += " ending"
				}
				got = append(got, s)
				return nil
			})
		}()
		n.rt.term["main"] = time.Second
		p := podtest.New("web")
		n.apply(p)
		n.remove(p)
		n.pass(2 * time.Second)
		cancel()
		<-done
		if len(got) == 0 || !strings.HasPrefix(got[0], "ADDED ") {
			t.Errorf("first %v", got)
		}
		for i, s := range got[1:] {
			if last := i == len(got)-2; strings.HasPrefix(s, "DELETED") != last || strings.HasPrefix(s, "ADDED") {
				t.Errorf("told %s", strings.Join(got, "\n"))
			}
		}
		if want := "DELETED Failed main:0:Error(143) ending"; got[len(got)-1] != want {
			t.Errorf("last %q, want %q", got[len(got)-1], want)
		}
	})
}
