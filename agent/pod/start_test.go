package pod

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
)

func waiting(n *testNode, name, container string) corev1.ContainerStateWaiting {
	n.t.Helper()
	p := n.pod(name)
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Name == container && s.State.Waiting != nil {
			return *s.State.Waiting
		}
	}
	n.t.Errorf("container %s of %s does not wait: %s", container, name, describe(p))
	return corev1.ContainerStateWaiting{}
}

func withImage(image string, policy corev1.PullPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
	}
}

func TestPull(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.registry["new:1"] = &runtimeapi.Image{Id: "sha256:new1"}
		n.rt.during = func(ctx context.Context, call string) {
			if strings.HasPrefix(call, "PullImage") {
				select {
				case <-time.After(1500 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		}
		n.apply(podtest.New("web", withImage("new:1", corev1.PullIfNotPresent)))
		n.is("web", "Pending main:0:ContainerCreating")
		n.pass(2 * time.Second)
		n.is("web", "Running main:0:running")
		if got := n.message("web", "Pulled"); got != `Successfully pulled image "new:1" in 1.5s` {
			t.Errorf("event %q", got)
		}
		if c := n.rt.containers["main-0"].config.GetImage(); c.GetImage() != "sha256:new1" || c.GetUserSpecifiedImage() != "new:1" {
			t.Errorf("image %v", c)
		}
	})
}

func TestPullPolicies(t *testing.T) {
	for _, c := range []struct {
		image  string
		policy corev1.PullPolicy
		want   string // the calls for two starts
	}{
		{"app:1", corev1.PullIfNotPresent, "ImageStatus app:1, ImageStatus app:1"},
		{"app:1", corev1.PullNever, "ImageStatus app:1, ImageStatus app:1"},
		{"app:1", corev1.PullAlways, "PullImage app:1, ImageStatus sha256:app1, PullImage app:1, ImageStatus sha256:app1"},
		{"app:1", "", "ImageStatus app:1, ImageStatus app:1"},
		{"app", "", "PullImage app:latest, ImageStatus sha256:app1, PullImage app:latest, ImageStatus sha256:app1"},
		{"new:1", corev1.PullIfNotPresent, "ImageStatus new:1, PullImage new:1, ImageStatus sha256:new1, ImageStatus new:1"},
	} {
		onNode(t, func(n *testNode) {
			n.rt.images["app:latest"] = n.rt.images["app:1"]
			n.rt.registry["new:1"] = &runtimeapi.Image{Id: "sha256:new1"}
			n.apply(podtest.New("web", withImage(c.image, c.policy)))
			n.rt.exit("main-0", 1)
			n.pass(0)
			n.is("web", "Running main:1:running<Error(1)")
			var got []string
			for _, call := range n.rt.called("") {
				if strings.Contains(call, "Image") {
					got = append(got, call)
				}
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("%s, %s: %v, want %s", c.image, c.policy, got, c.want)
			}
		})
	}
}

func TestPullFails(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web", withImage("none:1", corev1.PullIfNotPresent)))
		w := waiting(n, "web", "main")
		if w.Reason != "ErrImagePull" || !strings.HasPrefix(w.Message, `failed to pull image "none:1": `) {
			t.Errorf("%+v", w)
		}
		n.pass(2 * time.Second)
		w = waiting(n, "web", "main")
		if w.Reason != "ImagePullBackOff" || !strings.HasPrefix(w.Message, `Back-off pulling image "none:1": ErrImagePull: failed to pull`) {
			t.Errorf("%+v", w)
		}
		if got, want := n.happened("web"), "Pulling Failed Failed BackOff Failed"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		n.pass(7 * time.Second)
		if got := n.rt.called("PullImage"); len(got) != 1 {
			t.Errorf("pulls %v", got)
		}
		n.pass(time.Second)
		if got := n.rt.called("PullImage"); len(got) != 2 || waiting(n, "web", "main").Reason != "ErrImagePull" {
			t.Errorf("pulls %v, %v", got, waiting(n, "web", "main"))
		}
		n.rt.locked(func() { n.rt.registry["none:1"] = &runtimeapi.Image{Id: "sha256:none1"} })
		n.pass(20 * time.Second)
		n.is("web", "Running main:0:running")
	})
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web", withImage("none:1", corev1.PullNever)))
		if w := waiting(n, "web", "main"); w.Reason != "ErrImageNeverPull" || w.Message != `Container image "none:1" is not present with pull policy of Never` {
			t.Errorf("%+v", w)
		}
		// An image that is imported later is found.
		n.rt.locked(func() { n.rt.images["none:1"] = &runtimeapi.Image{Id: "sha256:none1"} })
		n.pass(10 * time.Second)
		n.is("web", "Running main:0:running")
	})
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web", withImage("NO:GOOD:NAME", corev1.PullIfNotPresent)))
		if w := waiting(n, "web", "main"); w.Reason != "InvalidImageName" {
			t.Errorf("%+v", w)
		}
	})
}

func TestStartFails(t *testing.T) {
	for _, c := range []struct {
		call, reason string
	}{
		{"CreateContainer", "CreateContainerError"},
		{"StartContainer", "RunContainerError"},
	} {
		onNode(t, func(n *testNode) {
			var works atomic.Bool
			n.rt.refuse = func(call string) error {
				if !works.Load() && strings.HasPrefix(call, c.call) {
					return grpcstatus.Error(codes.Unknown, "no luck")
				}
				return nil
			}
			p := podtest.New("web")
			n.apply(p)
			if w := waiting(n, "web", "main"); w.Reason != c.reason || !strings.Contains(w.Message, "no luck") {
				t.Errorf("%+v", w)
			}
			n.pass(time.Minute)
			if w := waiting(n, "web", "main"); w.Reason != c.reason {
				t.Errorf("%+v", w)
			}
			if got := len(n.rt.called(c.call)); got < 3 || got > 10 {
				t.Errorf("%s was tried %d times in a minute", c.call, got)
			}
			n.rt.locked(func() {
				if got := len(n.rt.containers); got > 2 {
					t.Errorf("%d containers", got)
				}
			})
			works.Store(true)
			n.pass(5 * time.Minute)
			if s := n.pod("web").Status; s.Phase != corev1.PodRunning || !s.ContainerStatuses[0].Ready {
				t.Errorf("pod is %s", describe(n.pod("web")))
			}
			n.remove(p)
			n.pass(time.Second)
			n.gone(p)
		})
	}
}

func TestConfigError(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Containers("main", "other"))
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsNonRoot: new(true)}
		n.apply(p)
		n.is("web", "Pending main:0:CreateContainerConfigError other:0:running")
		want := `container has runAsNonRoot and image will run as root (pod: "web_default(web-uid)", container: main)`
		if w := waiting(n, "web", "main"); w.Message != want {
			t.Errorf("%+v", w)
		}
		if got := n.message("web", "Failed"); got != "Error: CreateContainerConfigError: "+want {
			t.Errorf("event %q", got)
		}
	})
}

func TestSandboxFails(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.refuse = func(call string) error {
			if strings.HasPrefix(call, "RunPodSandbox") {
				return errors.New("no network")
			}
			return nil
		}
		p := podtest.New("web")
		n.apply(p)
		n.pass(30 * time.Second)
		n.is("web", "Pending main:0:ContainerCreating")
		if got := n.message("web", "FailedCreatePodSandBox"); got != "Failed to create pod sandbox: no network" {
			t.Errorf("event %q", got)
		}
		if got := len(n.rt.called("RunPodSandbox")); got != 5 { // at 0, 1, 3, 7, 15 seconds
			t.Errorf("%d tries", got)
		}
		n.remove(p)
		n.pass(0)
		n.gone(p)
	})
}

// A runtime refuses to remove a pod in which something lives that it has lost sight of. That is killed.
func TestRemovalRefused(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.pass(time.Second)
		var killed []string
		n.cgroups.killed = func(ids []string) { killed = append(killed, ids...) }
		n.rt.locked(func() {
			n.rt.refuse = func(call string) error {
				if strings.HasPrefix(call, "RemovePodSandbox") && len(killed) == 0 {
					return grpcstatus.Error(codes.FailedPrecondition, "cannot delete running task")
				}
				return nil
			}
		})
		n.remove(p)
		n.pass(time.Minute)
		n.gone(p)
		if got, tries := len(killed), len(n.rt.called("RemovePodSandbox")); got != 2 || tries != 2 {
			t.Errorf("after %d tries %q were killed, which should be the sandbox and its container", tries, killed)
		}
	})
}

// A container that was made, but not started before the agent died, is started by the next agent.
func TestCreatedIsStarted(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.during = func(ctx context.Context, call string) {
			if strings.HasPrefix(call, "StartContainer") {
				<-ctx.Done()
			}
		}
		n.apply(podtest.New("web"))
		n.stop()
		n.rt.during = nil
		n.start()
		n.is("web", "Running main:0:running")
		if got := n.rt.called("CreateContainer"); len(got) != 1 {
			t.Errorf("created %v", got)
		}
	})
}

// With the runtime's records gone, what the logs tell keeps a new container from writing into the log of an old one.
func TestAttemptFromLogs(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web"))
		c := n.rt.containers["main-0"]
		write(t, c.GetLogPath(), "")
		n.stop()
		clear(n.rt.containers)
		clear(n.rt.sandboxes)
		n.start()
		n.is("web", "Running main:1:running")
	})
}

func TestPostStart(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web", podtest.Containers("a", "b"))
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: podtest.Hook("sleep", "5s")}
		n.apply(p)
		n.pass(4 * time.Second)
		n.is("web", "Pending a:0:ContainerCreating b:0:ContainerCreating") // the hook holds up those behind
		n.pass(2 * time.Second)
		n.is("web", "Running a:0:running b:0:running")
	})
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: podtest.Hook("oops")}
		n.rt.exec = func(string, []string) (int32, error) { return 3, nil }
		n.apply(p)
		n.pass(5 * time.Second)
		if w := waiting(n, "web", "main"); w.Reason != "PostStartHookError" || !strings.Contains(w.Message, `command "oops" exited with 3`) {
			t.Errorf("%+v", w)
		}
		if !strings.Contains(n.happened("web"), "FailedPostStartHook Killing") {
			t.Errorf("events %s", n.happened("web"))
		}
		n.rt.locked(func() { n.rt.exec = nil })
		n.pass(time.Minute)
		if !n.pod("web").Status.ContainerStatuses[0].Ready {
			t.Errorf("pod is %s", describe(n.pod("web")))
		}
	})
	// Deletion does not wait for a hook.
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: podtest.Hook("sleep", "1h")}
		n.apply(p)
		n.remove(p)
		n.pass(time.Second)
		n.gone(p)
	})
}

func TestPreStop(t *testing.T) {
	for _, c := range []struct {
		name  string
		hook  *corev1.LifecycleHandler
		grace int64
		want  string // the stop
	}{
		{"counted in", podtest.Hook("sleep", "4s"), 10, "StopContainer main-0 6"},
		{"cut off", podtest.Hook("sleep", "1h"), 10, "StopContainer main-0 2"},
		{"sleep", &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}, 10, "StopContainer main-0 7"},
		{"no grace", podtest.Hook("sleep", "4s"), 0, "StopContainer main-0 0"},
	} {
		onNode(t, func(n *testNode) {
			p := podtest.New("web")
			p.Spec.TerminationGracePeriodSeconds = &c.grace
			p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: c.hook}
			n.apply(p)
			n.remove(p)
			n.pass(15 * time.Second)
			n.gone(p)
			if got := n.rt.called("StopContainer"); !slices.Equal(got, []string{c.want}) {
				t.Errorf("%s: %v, want %s", c.name, got, c.want)
			}
			if c.grace == 0 && len(n.rt.called("ExecSync")) != 0 {
				t.Errorf("%s: the hook was run", c.name)
			}
		})
	}
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: podtest.Hook("oops")}
		n.rt.exec = func(string, []string) (int32, error) { return 1, nil }
		n.apply(p)
		n.remove(p)
		n.pass(0)
		n.gone(p)
		if !strings.Contains(n.happened("web"), "FailedPreStopHook") {
			t.Errorf("events %s", n.happened("web"))
		}
	})
}

// An order in more of a hurry shortens the grace that was given, and does not run the hook again.
func TestHurry(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.term["main"] = -1
		p := podtest.New("web")
		p.Spec.TerminationGracePeriodSeconds = new(int64(3600))
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: podtest.Hook("bye")}
		n.apply(p)
		if err := n.m.Evict(p.UID, Eviction{Reason: "Evicted", GraceSeconds: 1800}); err != nil {
			t.Fatal(err)
		}
		n.pass(time.Minute)
		if err := n.m.Evict(p.UID, Eviction{Reason: "Evicted", GraceSeconds: 3}); err != nil {
			t.Fatal(err)
		}
		n.pass(4 * time.Second)
		n.is("web", "Failed(Evicted) main:0:Error(137)")
		if got := n.rt.called("ExecSync"); len(got) != 1 {
			t.Errorf("hooks %v", got)
		}
	})
}

// TestPreStopAlways removes a pod in ways that could leave its hook out. It runs to its end, once, before the container
// is told to end.
func TestPreStopAlways(t *testing.T) {
	for name, end := range map[string]func(n *testNode, p *corev1.Pod){
		"while no agent runs": func(n *testNode, p *corev1.Pod) {
			n.stop()
			delete(n.want, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
			n.start()
		},
		"with an agent that dies and is away for longer than the grace": func(n *testNode, p *corev1.Pod) {
			n.rt.locked(func() { n.rt.during = untilEnd("ExecSync") })
			n.remove(p)
			n.pass(time.Second)
			n.stop()
			n.rt.locked(func() { n.rt.during = nil })
			n.pass(time.Hour)
			n.start()
		},
		"while the container is being started": func(n *testNode, p *corev1.Pod) {
			n.rt.locked(func() {
				n.rt.during = func(ctx context.Context, call string) {
					if strings.HasPrefix(call, "StartContainer") {
						wait(ctx, 2*time.Second)
					}
				}
			})
			n.rt.exit("main-0", 1)
			n.pass(time.Second)
			n.remove(p)
		},
		"while the hook after its start runs": func(n *testNode, p *corev1.Pod) {
			n.rt.locked(func() { n.rt.during = untilEnd("ExecSync main-1 started") })
			n.rt.exit("main-0", 1)
			n.pass(time.Second)
			n.remove(p)
		},
		"while its keeper cannot be asked": func(n *testNode, p *corev1.Pod) {
			tries := 0
			n.rt.locked(func() {
				n.rt.refuse = func(call string) error {
					if tries++; strings.HasPrefix(call, "ExecSync") && tries < 4 {
						return grpcstatus.Error(codes.Unavailable, "keeper does not answer")
					}
					return nil
				}
			})
			n.remove(p)
		},
		"while it is killed for its probe": func(n *testNode, p *corev1.Pod) {
			n.rt.locked(func() { n.rt.during = untilEnd("ExecSync main-0 alive") })
			n.pass(time.Minute)
			n.remove(p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *testNode) {
				var hooked []string
				n.rt.exec = func(id string, cmd []string) (int32, error) {
					if cmd[0] == "bye" {
						hooked = append(hooked, id)
						if stops := n.rt.called("StopContainer " + id); len(stops) > 0 {
							t.Errorf("the hook runs after %v", stops)
						}
					}
					return 0, nil
				}
				p := podtest.New("web")
				p.Spec.TerminationGracePeriodSeconds = new(int64(20))
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: podtest.Hook("started"), PreStop: podtest.Hook("bye")}
				if strings.Contains(name, "probe") {
					p.Spec.Containers[0].LivenessProbe = &corev1.Probe{
						ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"alive"}}}, TimeoutSeconds: 1, PeriodSeconds: 1, FailureThreshold: 1,
					}
				}
				n.apply(p)
				n.pass(time.Second)
				end(n, p)
				n.pass(time.Minute)
				n.gone(p)
				stopped := n.rt.called("StopContainer")
				if len(hooked) == 0 || len(hooked) != len(stopped) {
					t.Errorf("hooks of %v, stops %v", hooked, stopped)
				}
			})
		})
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// untilEnd makes calls last until their context ends.
func untilEnd(prefix string) func(context.Context, string) {
	return func(ctx context.Context, call string) {
		if strings.HasPrefix(call, prefix) {
			<-ctx.Done()
		}
	}
}

func TestDeletedWhileStarting(t *testing.T) {
	for _, stuck := range []string{"PullImage", "RunPodSandbox", "CreateContainer", "StartContainer"} {
		onNode(t, func(n *testNode) {
			n.rt.registry["new:1"] = &runtimeapi.Image{Id: "sha256:new1"}
			n.rt.during = func(ctx context.Context, call string) {
				if strings.HasPrefix(call, stuck) {
					<-ctx.Done()
				}
			}
			p := podtest.New("web", withImage("new:1", corev1.PullIfNotPresent))
			n.apply(p)
			n.pass(time.Minute)
			if got := n.rt.called(stuck); len(got) != 1 {
				t.Errorf("%s: called %v", stuck, got)
			}
			n.remove(p)
			if stuck == "StartContainer" {
				n.pass(spec.Grace(p)) // it might run yet, and would have to be ended in good order
			}
			n.pass(0)
			n.gone(p)
		})
	}
}

func TestTeardownIsTriedAgain(t *testing.T) {
	for _, stuck := range []string{"StopContainer", "StopPodSandbox", "RemovePodSandbox"} {
		onNode(t, func(n *testNode) {
			var works atomic.Bool
			n.rt.refuse = func(call string) error {
				if !works.Load() && strings.HasPrefix(call, stuck) {
					return errors.New("not now")
				}
				return nil
			}
			p := podtest.New("web")
			n.apply(p)
			n.remove(p)
			n.pass(20 * time.Second)
			if n.pod("web").DeletionTimestamp == nil {
				t.Error("the pod is not known as ending")
			}
			if !strings.Contains(n.happened("web"), "FailedKillPod") {
				t.Errorf("events %s", n.happened("web"))
			}
			works.Store(true)
			n.pass(20 * time.Second)
			n.gone(p)
		})
	}
}

// A hundred pods at once start a few at a time, and a slow pull holds up nobody.
func TestCrowd(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.MaxParallelStarts = 3
		n.start()
		var mu sync.Mutex
		now, most := 0, 0
		n.rt.during = func(ctx context.Context, call string) {
			switch {
			case strings.HasPrefix(call, "PullImage"):
				<-ctx.Done()
			case strings.HasPrefix(call, "RunPodSandbox"), strings.HasPrefix(call, "StartContainer"), strings.HasPrefix(call, "StopPodSandbox"):
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				now--
				mu.Unlock()
			}
		}
		var pods []*corev1.Pod
		for i := range 100 {
			p := podtest.New("web"+strings.Repeat("x", i), podtest.Containers("c"))
			if i%10 == 0 {
				withImage("slow:1", corev1.PullIfNotPresent)(p)
			}
			pods = append(pods, p)
		}
		n.apply(pods...)
		n.pass(2 * time.Second)
		up := 0
		for _, p := range n.m.List() {
			if p.Status.Phase == corev1.PodRunning {
				up++
			}
		}
		if up != 90 || most != 3 {
			t.Errorf("%d pods are up, at most %d calls at a time", up, most)
		}
		n.remove(pods...)
		n.pass(2 * time.Second)
		n.gone(pods...)
	})
}

// With one slot and a crowd, the pods come up one after the other: those that have begun go first.
func TestCrowdComesUpSteadily(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.MaxParallelStarts = 1
		n.start()
		n.rt.during = func(_ context.Context, call string) {
			if strings.HasPrefix(call, "RunPodSandbox") || strings.HasPrefix(call, "StartContainer") {
				time.Sleep(10 * time.Millisecond)
			}
		}
		var pods []*corev1.Pod
		for i := range 20 {
			pods = append(pods, podtest.New("web"+strings.Repeat("x", i), podtest.Containers("c")))
		}
		n.apply(pods...)
		n.pass(205 * time.Millisecond)
		if got := len(n.rt.running()); got < 9 {
			t.Errorf("after half of the time %d of 20 containers run", got)
		}
	})
}

// A runtime that hangs is asked again, and does not hold up other pods for ever.
func TestRuntimeHangs(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.MaxParallelStarts = 1
		n.start()
		n.rt.during = func(ctx context.Context, call string) {
			if call == "RunPodSandbox a" || call == "CreateContainer b" {
				<-ctx.Done()
			}
		}
		n.apply(podtest.New("a"))
		n.apply(podtest.New("b", podtest.Containers("b")), podtest.New("c", podtest.Containers("c")))
		n.pass(10 * time.Minute)
		n.is("c", "Running c:0:running")
		n.is("b", "Pending b:0:CreateContainerError")
		if got := n.rt.called("RunPodSandbox a"); len(got) < 2 {
			t.Errorf("asked %d times", len(got))
		}
	})
}

func TestTiming(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.rt.during = func(_ context.Context, call string) {
			if strings.HasPrefix(call, "RunPodSandbox") {
				time.Sleep(10 * time.Millisecond)
			}
		}
		p := podtest.New("web", func(p *corev1.Pod) {
			p.Annotations = map[string]string{seenAnnotation: time.Now().Add(-5 * time.Millisecond).Format(time.RFC3339Nano)}
		})
		n.apply(p)
		n.pass(time.Second)
		root := n.m.Timing(p.UID)
		if root == nil || root.Name != "pod" || root.Duration != 15*time.Millisecond {
			t.Fatalf("timing %+v", root)
		}
		var names []string
		for _, c := range root.Children {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, []string{"image", "prepare", "start"}) {
			t.Errorf("steps %v", names)
		}
		slow := podtest.New("slow", withImage("none:1", corev1.PullIfNotPresent))
		n.apply(slow)
		n.pass(time.Minute)
		if now := n.m.Timing(slow.UID); now == nil || now.Duration < time.Minute || len(now.Children) < 2 {
			t.Errorf("timing of a start that goes on: %+v", now)
		}
		n.remove(p)
		n.pass(time.Second)
		if n.m.Timing(p.UID) != nil {
			t.Error("the timing of a pod that is gone is kept")
		}
	})
}
