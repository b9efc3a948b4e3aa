package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/status"
	"github.com/berth-node/berth/eviction/collect"
)

var planNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// planCase is what is there, in a short notation, and what is to be done about it.
//
// The spec lists the pod's containers: "name", "init:name" or "side:name". What is seen is "sandbox" (or
// "sandbox=dead") and "name=state", in the order of their making. A state is created, running, unknown or exitN; "!"
// says that the container is in a sandbox before the present one, "@10s" that it ended that long ago, "~20s" that it
// carries that back-off and "^1" that it is of that round.
type planCase struct {
	name   string
	policy corev1.RestartPolicy
	spec   string
	seen   string
	busy   string // steps that run
	change func(*View)

	want  string // steps
	waits string // containers that wait, with their reasons
	wake  time.Duration
	over  bool
	gone  bool
}

func (c planCase) view() *View {
	pod := podtest.New("p", podtest.Policy(c.policy))
	pod.Spec.Containers = nil
	for word := range strings.FieldsSeq(c.spec) {
		switch kind, name, ok := strings.Cut(word, ":"); {
		case !ok:
			pod.Spec.Containers = append(pod.Spec.Containers, podtest.Container(word))
		case kind == "side":
			podtest.Inits(name + "*")(pod)
		default:
			podtest.Inits(name)(pod)
		}
	}
	v := &View{
		Pod: pod, Now: planNow, Seen: &Observed{Containers: map[string][]Container{}}, Prepared: true, Busy: map[string]Step{},
		Images: map[string]spec.Image{}, Failed: map[string]Failure{}, Refused: map[string]Failure{}, Probes: map[string]ProbeResults{},
		Delays: Delays{10 * time.Second, 5 * time.Minute, 10 * time.Minute},
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, k := range list {
			v.Images[k.Name] = spec.Image{ID: "x"}
		}
	}
	for key := range strings.FieldsSeq(c.busy) {
		_, name, _ := strings.Cut(key, "/")
		v.Busy[key] = Step{Kind: KindOf(key), Container: name}
	}
	for i, word := range strings.Fields(c.seen) {
		v.see(i, word)
	}
	v.Unneeded = map[string]bool{}
	for _, c := range collect.Default().Containers(v.Seen.Dead(pod.UID), func(types.UID) bool { return true }, planNow) {
		v.Unneeded[c.ID] = true
	}
	if c.change != nil {
		c.change(v)
	}
	return v
}

func (v *View) see(i int, word string) {
	name, state, _ := strings.Cut(word, "=")
	if name == "sandbox" {
		s := &runtimeapi.PodSandboxStatus{
			Id: "sandbox", Metadata: &runtimeapi.PodSandboxMetadata{Attempt: 1}, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"},
		}
		if state == "dead" {
			s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		v.Seen.Sandboxes = append(v.Seen.Sandboxes, s)
		return
	}
	c := Container{Sandbox: "sandbox", ContainerStatus: &runtimeapi.ContainerStatus{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, CreatedAt: planNow.Add(-time.Hour).UnixNano() + int64(i),
		Annotations: map[string]string{"io.kubernetes.container.hash": spec.Hash(&corev1.Container{Name: name, Image: "app:1"})},
	}}
	state, round, _ := strings.Cut(state, "^")
	c.Annotations["berth.node/round"] = round
	state, backoff, _ := strings.Cut(state, "~")
	c.Annotations["berth.node/restart-backoff"] = backoff
	state, ago, _ := strings.Cut(state, "@")
	if s, old := strings.CutSuffix(state, "!"); old {
		state, c.Sandbox = s, "old"
	}
	ended := planNow.Add(-time.Hour)
	if d, err := time.ParseDuration(ago); err == nil {
		ended = planNow.Add(-d)
	}
	var code int32
	switch n, _ := fmt.Sscanf(state, "exit%d", &code); {
	case n == 1:
		c.State, c.ExitCode, c.StartedAt, c.FinishedAt = Exited, code, ended.Add(-time.Second).UnixNano(), ended.UnixNano()
	case state == "running":
		c.State, c.StartedAt = Running, ended.UnixNano()
	case state == "unknown":
		c.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
	list := v.Seen.Containers[name]
	c.Metadata.Attempt = uint32(len(list))
	c.Id = fmt.Sprintf("%s%d", name, len(list))
	v.Seen.Containers[name] = append([]Container{c}, list...)
}

func (d *Decision) text() string {
	var out []string
	for _, s := range d.Steps {
		t := s.Key()
		if s.Kind == Start && s.ID != "" {
			t += "(" + s.ID + ")"
		}
		if s.Kind == Start && s.Backoff != 0 {
			t += "~" + s.Backoff.String()
		}
		if s.Kind == Start && s.Round != 0 {
			t += fmt.Sprintf("^%d", s.Round)
		}
		if s.Kind == Kill {
			t += "@" + s.Deadline.Sub(planNow).String()
		}
		if s.Kind == Prepare && s.ID != "" {
			t += fmt.Sprintf("(%d after %s)", s.Attempt, s.ID)
		}
		out = append(out, t)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func waits(w map[string]status.Waiting) string {
	var out []string
	for name, why := range w {
		out = append(out, name+":"+why.Reason)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func ending30(v *View) { v.End = &Ending{Since: planNow, Grace: 30 * time.Second} }

func shedding(v *View) {
	ending30(v)
	v.End.Keep, v.End.Shed = true, true
}

func TestPlan(t *testing.T) {
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	noImages := func(v *View) { clear(v.Images) }
	unprepared := func(v *View) { v.Prepared = false }
	finished := func(v *View) { v.Finished = true }
	hook := func(name string) func(*View) {
		return func(v *View) {
			spec.FindContainer(v.Pod, name).Lifecycle = &corev1.Lifecycle{PostStart: podtest.Hook("x")}
		}
	}
	runPlans(t, []planCase{
		// The beginning.
		{name: "nothing there", spec: "a", want: "prepare"},
		{name: "images meanwhile", spec: "a b", change: noImages, want: "image/a image/b prepare"},
		{name: "only of what comes next", spec: "init:i a", change: noImages, want: "image/i prepare"},
		{name: "preparing", spec: "a", busy: "prepare"},
		{name: "sandbox is up", spec: "a", seen: "sandbox", want: "start/a"},
		{name: "without an image", spec: "a", seen: "sandbox", change: noImages, want: "image/a"},
		{name: "being pulled", spec: "a", seen: "sandbox", change: noImages, busy: "image/a"},
		{name: "all at once", spec: "a b c", seen: "sandbox", want: "start/a start/b start/c"},
		{name: "being started", spec: "a b", seen: "sandbox a=created", busy: "start/a start/b"},
		{name: "prepared by an agent before", spec: "a", seen: "sandbox", change: unprepared, want: "prepare"},
		{name: "running", spec: "a b", seen: "sandbox a=running b=running"},
		{name: "running, not prepared", spec: "a", seen: "sandbox a=running", change: unprepared},
		{name: "made, not started", spec: "a", seen: "sandbox a=created", want: "start/a(a0)"},
		{
			name: "sandbox has failed", spec: "a", wake: 3 * time.Second,
			change: func(v *View) { v.Failed["prepare"] = Failure{Until: planNow.Add(3 * time.Second)} },
		},
		{
			name: "claims cannot be prepared", spec: "a", wake: 3 * time.Second, waits: "a:FailedPrepareDynamicResources",
			change: func(v *View) {
				v.Failed["prepare"] = Failure{Reason: ReasonClaims, Message: "x", Until: planNow.Add(3 * time.Second)}
			},
		},
		{
			name: "sandbox without an address", spec: "a", seen: "sandbox", want: "prepare(2 after sandbox)",
			change: func(v *View) { v.Seen.Sandboxes[0].Network = nil },
		},
		{
			name: "on the node's network it needs none", spec: "a", seen: "sandbox", want: "start/a",
			change: func(v *View) { v.Seen.Sandboxes[0].Network = nil; v.Pod.Spec.HostNetwork = true },
		},

		// Hooks hold up those behind.
		{name: "hook first", spec: "a b c", seen: "sandbox", change: hook("b"), want: "start/a start/b"},
		{name: "hook to come", spec: "a b", seen: "sandbox", busy: "image/a", change: func(v *View) {
			hook("a")(v)
			delete(v.Images, "a")
		}},
		{
			name: "hook cannot come", spec: "a b", seen: "sandbox", want: "start/b", waits: "a:CreateContainerError", wake: time.Second,
			change: func(v *View) {
				hook("a")(v)
				v.Failed["start/a"] = Failure{Reason: ReasonCreate, Until: planNow.Add(time.Second)}
			},
		},
		{name: "hook runs", spec: "a b c", seen: "sandbox a=running b=running", busy: "start/b", change: hook("b")},
		{name: "hook done", spec: "a b c", seen: "sandbox a=running b=running", change: hook("b"), want: "start/c"},

		// What exits.
		{name: "restart at once", spec: "a", seen: "sandbox a=exit1@1s", want: "start/a~10s"},
		{name: "restart after success", spec: "a", seen: "sandbox a=exit0@1s", want: "start/a~10s"},
		{name: "back-off", spec: "a", seen: "sandbox a=exit1@4s~10s", waits: "a:CrashLoopBackOff", wake: 6 * time.Second},
		{name: "back-off is over", spec: "a", seen: "sandbox a=exit1@10s~10s", want: "start/a~20s"},
		{name: "back-off has a limit", spec: "a", seen: "sandbox a=exit1@301s~5m", want: "start/a~5m0s"},
		{name: "no image in a back-off", spec: "a", seen: "sandbox a=exit1@4s~10s", change: noImages, waits: "a:CrashLoopBackOff", wake: 6 * time.Second},
		{name: "on failure, failed", policy: onFailure, spec: "a", seen: "sandbox a=exit1", want: "start/a~10s"},
		{name: "on failure, one done", policy: onFailure, spec: "a b", seen: "sandbox a=exit0 b=running"},
		{name: "on failure, done", policy: onFailure, spec: "a b", seen: "sandbox a=exit0 b=exit0", want: "finish", over: true},
		{name: "never", policy: never, spec: "a b", seen: "sandbox a=exit1 b=running"},
		{name: "never, over", policy: never, spec: "a b", seen: "sandbox a=exit1 b=exit0", want: "finish", over: true},
		{name: "never, over and cleared", policy: never, spec: "a", seen: "sandbox=dead a=exit1", change: finished, over: true},
		{name: "never, one was not started", policy: never, spec: "a b", seen: "sandbox a=exit0", want: "start/b"},
		{name: "unknown", spec: "a", seen: "sandbox a=unknown", want: "kill/a0@30s"},
		{
			name: "a container's own policy", policy: always, spec: "a", seen: "sandbox a=exit1", want: "finish", over: true,
			change: func(v *View) { v.Pod.Spec.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever) },
		},

		// What cannot be started.
		{
			name: "create has failed", spec: "a b", seen: "sandbox", waits: "a:CreateContainerError", wake: time.Second, want: "start/b",
			change: func(v *View) {
				v.Failed["start/a"] = Failure{Reason: ReasonCreate, Until: planNow.Add(time.Second)}
			},
		},
		{name: "create may be tried again", spec: "a", seen: "sandbox", want: "start/a", change: func(v *View) {
			v.Failed["start/a"] = Failure{Reason: ReasonCreate, Until: planNow}
		}},
		{
			name: "start was refused", spec: "a", seen: "sandbox a=created~10s", waits: "a:RunContainerError", wake: 8 * time.Second,
			change: func(v *View) { v.Refused["a0"] = Failure{Reason: ReasonRun, At: planNow.Add(-2 * time.Second)} },
		},
		{
			name: "start was refused long ago", spec: "a", seen: "sandbox a=created~10s", want: "start/a~20s",
			change: func(v *View) { v.Refused["a0"] = Failure{Reason: ReasonRun, At: planNow.Add(-time.Minute)} },
		},
		{
			name: "start was refused for good", policy: never, spec: "a", seen: "sandbox a=created", want: "finish", over: true,
			change: func(v *View) { v.Refused["a0"] = Failure{Reason: ReasonRun, At: planNow} },
		},
		{
			name: "pull has failed", spec: "a", seen: "sandbox", waits: "a:ErrImagePull", wake: time.Second,
			change: func(v *View) {
				clear(v.Images)
				v.Failed["image/a"] = Failure{Reason: ReasonErrImagePull, At: planNow, Until: planNow.Add(10 * time.Second)}
			},
		},
		{
			name: "pull has failed a while ago", spec: "a", seen: "sandbox", waits: "a:ImagePullBackOff", wake: 5 * time.Second,
			change: func(v *View) {
				clear(v.Images)
				v.Failed["image/a"] = Failure{Reason: ReasonErrImagePull, At: planNow.Add(-5 * time.Second), Until: planNow.Add(5 * time.Second)}
			},
		},
		{
			name: "image must be there", spec: "a", seen: "sandbox", waits: "a:ErrImageNeverPull", wake: 5 * time.Second,
			change: func(v *View) {
				clear(v.Images)
				v.Failed["image/a"] = Failure{Reason: ReasonErrImageNeverPull, At: planNow.Add(-5 * time.Second), Until: planNow.Add(5 * time.Second)}
			},
		},
		{
			name: "pulled again", spec: "a", seen: "sandbox", want: "image/a", waits: "a:ImagePullBackOff",
			change: func(v *View) {
				clear(v.Images)
				v.Failed["image/a"] = Failure{Reason: ReasonErrImagePull, At: planNow.Add(-10 * time.Second), Until: planNow}
			},
		},

		// Init containers.
		{name: "first init", spec: "init:i init:j a", seen: "sandbox", want: "start/i"},
		{name: "init runs", spec: "init:i init:j a", seen: "sandbox i=running"},
		{name: "second init", spec: "init:i init:j a", seen: "sandbox i=exit0", want: "start/j"},
		{name: "init over", spec: "init:i init:j a", seen: "sandbox i=exit0 j=exit0", want: "start/a"},
		{name: "init has failed", spec: "init:i a", seen: "sandbox i=exit1", want: "start/i~10s"},
		{name: "init backs off", spec: "init:i a", seen: "sandbox i=exit1@5s~10s", waits: "i:CrashLoopBackOff", wake: 5 * time.Second},
		{name: "init has failed for good", policy: never, spec: "init:i a", seen: "sandbox i=exit1", want: "finish", over: true},
		{name: "init, on failure", policy: onFailure, spec: "init:i a", seen: "sandbox i=exit1", want: "start/i~10s"},
		{name: "records of init are gone", spec: "init:i init:j a b", seen: "sandbox a=running", want: "start/b"},
		{name: "records of the first init are gone", spec: "init:i init:j a", seen: "sandbox j=running"},
		{name: "init is not asked again", spec: "init:i a", seen: "sandbox i=exit1 a=running"},

		// Sidecars.
		{name: "sidecar first", spec: "side:s init:i a", seen: "sandbox", want: "start/s"},
		{name: "sidecar is being started", spec: "side:s init:i a", seen: "sandbox s=running", busy: "start/s"},
		{name: "behind a sidecar", spec: "side:s init:i a", seen: "sandbox s=running", want: "start/i"},
		{name: "sidecar restarts before others", spec: "side:s init:i a", seen: "sandbox s=exit0", want: "start/s~10s"},
		{name: "sidecar restarts beside init", spec: "side:s init:i a", seen: "sandbox s=exit0 i=exit0", want: "start/a start/s~10s"},
		{name: "sidecar restarts beside containers", policy: never, spec: "side:s a", seen: "sandbox s=exit0 a=running", want: "start/s~10s"},
		{
			name: "sidecar is not up", spec: "side:s a", seen: "sandbox s=running",
			change: func(v *View) { v.Pod.Spec.InitContainers[0].StartupProbe = &corev1.Probe{} },
		},
		{
			name: "sidecar is up", spec: "side:s a", seen: "sandbox s=running", want: "start/a",
			change: func(v *View) {
				v.Pod.Spec.InitContainers[0].StartupProbe = &corev1.Probe{}
				v.Probes["s0"] = ProbeResults{Startup: ProbePassed}
			},
		},
		{name: "over but for sidecars", policy: never, spec: "side:s side:t a", seen: "sandbox s=running t=running a=exit0", want: "kill/t0@30s"},
		{name: "sidecars end in reverse", policy: never, spec: "side:s side:t a", seen: "sandbox s=running t=exit0 a=exit0", want: "kill/s0@30s"},
		{name: "sidecars have ended", policy: never, spec: "side:s side:t a", seen: "sandbox s=exit1 t=exit0 a=exit0", want: "finish", over: true},

		// Sandboxes that die.
		{name: "dead", spec: "a", seen: "sandbox=dead a=exit255!", want: "prepare(2 after sandbox)"},
		{name: "dead, something runs", spec: "a b", seen: "sandbox=dead a=running b=exit1", want: "kill/a0@30s"},
		{name: "dead, in a back-off", spec: "a", seen: "sandbox=dead a=exit1@4s~10s", want: "prepare(2 after sandbox)", waits: "a:CrashLoopBackOff", wake: 6 * time.Second},
		{name: "new one, containers again", spec: "a b", seen: "a=exit255! b=exit0! sandbox", want: "start/a~10s start/b~10s"},
		{name: "new one, init again", spec: "init:i a", seen: "i=exit0! a=exit255! sandbox", want: "start/i~10s"},
		{name: "new one, what succeeded stays", policy: onFailure, spec: "a b", seen: "a=exit255! b=exit0! sandbox", want: "start/a~10s"},
		{name: "dead, never again", policy: never, spec: "a", seen: "sandbox=dead a=exit255", want: "finish", over: true},
		{name: "dead, done anyway", policy: onFailure, spec: "a", seen: "sandbox=dead a=exit0", want: "finish", over: true},
		{name: "dead before anything ran", policy: never, spec: "a", seen: "sandbox=dead", want: "prepare(2 after sandbox)"},
		{name: "dead before a start", spec: "a", seen: "a=created! sandbox", want: "start/a"},

		// What runs and should not.
		{name: "changed", spec: "a", seen: "sandbox a=running", want: "kill/a0@30s", change: func(v *View) { v.Pod.Spec.Containers[0].Image = "app:2" }},
		{name: "not alive", spec: "a", seen: "sandbox a=running", want: "kill/a0@30s", change: func(v *View) {
			v.Pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
			v.Probes["a0"] = ProbeResults{Liveness: ProbeFailed}
		}},
		{name: "did not start up", spec: "a", seen: "sandbox a=running", want: "kill/a0@5s", change: func(v *View) {
			v.Pod.Spec.Containers[0].StartupProbe = &corev1.Probe{TerminationGracePeriodSeconds: new(int64(5))}
			v.Probes["a0"] = ProbeResults{Startup: ProbeFailed}
		}},
		{name: "a probe that is gone", spec: "a", seen: "sandbox a=running", change: func(v *View) { v.Probes["a0"] = ProbeResults{Liveness: ProbeFailed} }},

		// What nobody asks for.
		{name: "one dead is kept", spec: "a", seen: "sandbox a=exit1 a=running"},
		{name: "older ones go", spec: "a", seen: "sandbox a=exit1 a=exit1 a=exit1 a=running", want: "remove/a0 remove/a1"},
		{name: "those never started go", spec: "a", seen: "sandbox a=exit1 a=created a=running", want: "remove/a1"},
		{name: "not in the way of a start", spec: "a b", seen: "sandbox a=exit1 a=exit1 a=running", want: "start/b"},
		{
			name: "old sandboxes go when they are empty", spec: "a", seen: "sandbox a=exit1! a=running", want: "forget/older",
			change: func(v *View) {
				v.Seen.Sandboxes = append(v.Seen.Sandboxes, &runtimeapi.PodSandboxStatus{Id: "old"}, &runtimeapi.PodSandboxStatus{Id: "older"})
			},
		},

		// The end.
		{name: "end", spec: "init:i a b", seen: "sandbox i=exit0 a=running b=running", change: ending30, want: "kill/a0@30s kill/b0@30s"},
		{name: "end, init runs", spec: "init:i a", seen: "sandbox i=running", change: ending30, want: "kill/i0@30s"},
		{name: "end, sidecars wait", spec: "side:s a", seen: "sandbox s=running a=running", busy: "kill/a0", change: ending30},
		{name: "end, sidecars", spec: "side:s side:t a", seen: "sandbox s=running t=running a=exit0", change: ending30, want: "kill/t0@30s"},
		{name: "end, all", spec: "side:s a", seen: "sandbox s=exit0 a=exit0", change: ending30, want: "teardown", over: true},
		{name: "end, while something starts", spec: "a", seen: "sandbox", busy: "start/a", change: ending30},
		{name: "end, while something is pulled", spec: "a", busy: "image/a", change: ending30},
		{name: "end, nothing there", spec: "a", change: ending30, want: "teardown", over: true},
		{name: "end, being torn down", spec: "a", busy: "teardown", change: ending30, over: true},
		{name: "end, while it gives things back", spec: "a", policy: never, seen: "sandbox a=exit0", busy: "finish", change: ending30},
		{name: "end, gone", spec: "a", over: true, gone: true, change: func(v *View) { ending30(v); v.Torn = true }},
		{name: "end of one that was over", spec: "a", policy: never, seen: "sandbox=dead a=exit0", want: "teardown", over: true, change: func(v *View) {
			ending30(v)
			v.Finished = true
		}},
		{name: "eviction", spec: "a", seen: "sandbox a=exit0", want: "finish", over: true, change: func(v *View) { ending30(v); v.End.Keep = true }},
		{name: "evicted", spec: "a", seen: "sandbox=dead a=exit0", over: true, change: func(v *View) { ending30(v); v.End.Keep, v.Finished = true, true }},
		{name: "eviction for its files", spec: "a b", seen: "sandbox a=exit0 a=exit1 b=exit0", want: "remove/a0 remove/a1 remove/b0", over: true, change: shedding},
		{name: "eviction for its files, still running", spec: "a b", seen: "sandbox a=running b=exit0", want: "kill/a0@30s", change: shedding},
		{name: "eviction for its files, which are gone", spec: "a", seen: "sandbox", want: "finish", over: true, change: shedding},
		{
			name: "eviction for its files, which cannot be removed", spec: "a", seen: "sandbox a=exit0", want: "finish", over: true, wake: time.Second,
			change: func(v *View) { shedding(v); v.Failed["remove/a0"] = Failure{Until: planNow.Add(time.Second)} },
		},
		{
			name: "end, a stop has failed", spec: "a b", seen: "sandbox a=running b=running", want: "kill/b0@30s", wake: time.Second,
			change: func(v *View) { ending30(v); v.Failed["kill/a0"] = Failure{Until: planNow.Add(time.Second)} },
		},
	})
}

func runPlans(t *testing.T, cases []planCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.policy == "" {
				c.policy = corev1.RestartPolicyAlways
			}
			v := c.view()
			d := Decide(v)
			if got := d.text(); got != c.want {
				t.Errorf("steps %q, want %q", got, c.want)
			}
			if got := waits(d.Waiting); got != c.waits {
				t.Errorf("waiting %q, want %q", got, c.waits)
			}
			wake := time.Duration(0)
			if !d.Wake.IsZero() {
				wake = d.Wake.Sub(planNow)
			}
			if wake != c.wake || d.Over != c.over || d.Gone != c.gone {
				t.Errorf("wake %s, over %t, gone %t; want %s, %t, %t", wake, d.Over, d.Gone, c.wake, c.over, c.gone)
			}
		})
	}
}

// The same view always comes to the same plan, and a step that runs is not planned again.
func TestPlanRepeats(t *testing.T) {
	for _, c := range []planCase{
		{spec: "init:i side:s a b", seen: "sandbox i=exit0 s=running a=exit1 b=running"},
		{spec: "side:s side:t a b", seen: "sandbox s=running t=running a=running b=running", change: ending30},
		{spec: "a b c"},
	} {
		v := c.view()
		d := Decide(v)
		again := Decide(c.view())
		if d.text() != again.text() {
			t.Errorf("%q, then %q", d.text(), again.text())
		}
		for _, s := range d.Steps {
			v.Busy[s.Key()] = s
		}
		after := Decide(v)
		for _, s := range after.Steps {
			if _, runs := v.Busy[s.Key()]; runs {
				t.Errorf("%s is planned while it runs", s.Key())
			}
		}
	}
}

func TestBackoffDelays(t *testing.T) {
	d := Delays{10 * time.Second, 5 * time.Minute, 10 * time.Minute}
	for n, want := range map[int]time.Duration{1: 10, 2: 20, 5: 160, 6: 300, 50: 300} {
		if got := d.Pull(n); got != want*time.Second {
			t.Errorf("after %d failed pulls %s", n, got)
		}
	}
	for n, want := range map[int]time.Duration{1: 1, 2: 2, 9: 256, 10: 300} {
		if got := d.Retry(n); got != want*time.Second {
			t.Errorf("after %d failures %s", n, got)
		}
	}
	// Without any delay for restarts what fails by itself still has one.
	if got := (Delays{}).Pull(3); got != time.Second {
		t.Errorf("without delays %s", got)
	}
}

func BenchmarkPlan(b *testing.B) {
	v := planCase{policy: corev1.RestartPolicyAlways, spec: "init:i side:s a b", seen: "sandbox i=exit0 s=running a=running b=running"}.view()
	for b.Loop() {
		Decide(v)
	}
}
