package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// scene is a pod and what the runtime has of it, in a short notation. A container is "name" for one that should be, an
// init container is "init:name", a sidecar "side:name"; a seen one is "name=state", with the newest last.
type scene struct {
	policy     corev1.RestartPolicy
	spec, seen string
	waiting    map[string]Waiting
	change     func(*Input)
}

func (s scene) input() Input {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: corev1.PodSpec{RestartPolicy: s.policy}}
	for word := range strings.FieldsSeq(s.spec) {
		kind, name, ok := strings.Cut(word, ":")
		if !ok {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: word, Image: "img:1"})
			continue
		}
		c := corev1.Container{Name: name, Image: "img:1"}
		if kind == "side" {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	in := Input{Pod: pod, Now: now, Runtime: "berth", HostIPs: []string{"192.0.2.1", "2001:db8::1"}, Waiting: s.waiting}
	for i, word := range strings.Fields(s.seen) {
		name, state, _ := strings.Cut(word, "=")
		if name == "sandbox" {
			in.Sandbox = &runtimeapi.PodSandboxStatus{
				Id: "s", CreatedAt: now.Add(-time.Hour).UnixNano(),
				Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.2", AdditionalIps: []*runtimeapi.PodIP{{Ip: "fd00::2"}}},
			}
			if state == "dead" {
				in.Sandbox.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			}
			continue
		}
		in.Containers = append(in.Containers, seenContainer(i, name, state))
	}
	if s.change != nil {
		s.change(&in)
	}
	return in
}

// seenContainer is in a state like created, running, exit0, exit137 or unknown.
func seenContainer(i int, name, state string) *runtimeapi.ContainerStatus {
	c := &runtimeapi.ContainerStatus{
		Id: fmt.Sprintf("%s%d", name, i), Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: uint32(i)},
		CreatedAt: now.Add(time.Duration(i)*time.Minute - time.Hour).UnixNano(), ImageRef: "img@sha256:1", Image: &runtimeapi.ImageSpec{Image: "sha256:1"},
		Annotations: map[string]string{RestartCountAnnotation: "2"},
	}
	c.StartedAt = c.CreatedAt + int64(time.Second)
	var code int32
	switch n, _ := fmt.Sscanf(state, "exit%d", &code); {
	case n == 1:
		c.State, c.ExitCode, c.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, c.CreatedAt+int64(time.Minute)
	case state == "running":
		c.State = runtimeapi.ContainerState_CONTAINER_RUNNING
	case state == "unknown":
		c.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN
	default:
		c.StartedAt = 0
	}
	return c
}

// own gives the pod's containers restart policies of their own.
func own(policies ...corev1.ContainerRestartPolicy) func(*Input) {
	return func(in *Input) {
		for i := range policies {
			in.Pod.Spec.Containers[i].RestartPolicy = &policies[i]
		}
	}
}

func both(changes ...func(*Input)) func(*Input) {
	return func(in *Input) {
		for _, c := range changes {
			c(in)
		}
	}
}

func TestPhase(t *testing.T) {
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	crash := map[string]Waiting{"a": {Reason: "CrashLoopBackOff"}}
	ended := func(in *Input) { in.Ended = true }
	failed := func(in *Input) { in.Failed = true }
	for _, c := range []struct {
		scene
		want corev1.PodPhase
	}{
		{scene{policy: always, spec: "a"}, corev1.PodPending},
		{scene{policy: always, spec: "a", seen: "a=created"}, corev1.PodPending},
		{scene{policy: always, spec: "a", seen: "a=running"}, corev1.PodRunning},
		{scene{policy: always, spec: "a b", seen: "a=running"}, corev1.PodPending},
		{scene{policy: always, spec: "a b", seen: "a=running b=running"}, corev1.PodRunning},
		{scene{policy: always, spec: "a", seen: "a=exit0"}, corev1.PodRunning},
		{scene{policy: always, spec: "a", seen: "a=exit1", waiting: crash}, corev1.PodRunning},
		{scene{policy: onFailure, spec: "a", seen: "a=exit0", change: ended}, corev1.PodSucceeded},
		{scene{policy: onFailure, spec: "a", seen: "a=exit1"}, corev1.PodRunning},
		{scene{policy: onFailure, spec: "a b", seen: "a=exit0 b=running"}, corev1.PodRunning},
		{scene{policy: onFailure, spec: "a b", seen: "a=exit1 b=exit0"}, corev1.PodRunning},
		{scene{policy: never, spec: "a", seen: "a=exit0", change: ended}, corev1.PodSucceeded},
		{scene{policy: never, spec: "a", seen: "a=exit1", change: ended}, corev1.PodFailed},
		{scene{policy: never, spec: "a b", seen: "a=exit1 b=running"}, corev1.PodRunning},
		{scene{policy: never, spec: "a b", seen: "a=exit1 b=exit0", change: ended}, corev1.PodFailed},
		{scene{policy: never, spec: "a b", seen: "a=exit0"}, corev1.PodPending},

		{scene{policy: always, spec: "a b", seen: "a=exit1 b=exit0", change: both(own("Never", "OnFailure"), ended)}, corev1.PodFailed},
		{scene{policy: never, spec: "a b", seen: "a=exit1 b=exit0", change: own("OnFailure", "Never")}, corev1.PodRunning},

		{scene{policy: always, spec: "init:i a", seen: "i=running"}, corev1.PodPending},
		{scene{policy: always, spec: "init:i a", seen: "i=exit0"}, corev1.PodPending},
		{scene{policy: always, spec: "init:i a", seen: "i=exit1"}, corev1.PodPending},
		{scene{policy: always, spec: "init:i a", seen: "i=exit0 a=running"}, corev1.PodRunning},
		{scene{policy: always, spec: "init:i a", seen: "a=running"}, corev1.PodRunning},
		{scene{policy: onFailure, spec: "init:i a", seen: "i=exit1"}, corev1.PodPending},
		{scene{policy: never, spec: "init:i a", seen: "i=exit1", change: ended}, corev1.PodFailed},
		{scene{policy: never, spec: "init:i init:j a", seen: "i=exit0 j=exit1", change: ended}, corev1.PodFailed},

		{scene{policy: always, spec: "side:s a", seen: "s=running"}, corev1.PodPending},
		{scene{policy: always, spec: "side:s a", seen: "s=running a=running"}, corev1.PodRunning},
		{scene{policy: always, spec: "side:s a", seen: "s=exit1 a=running"}, corev1.PodRunning},
		{scene{policy: never, spec: "side:s a", seen: "s=running a=exit0"}, corev1.PodRunning},
		{scene{policy: never, spec: "side:s a", seen: "s=exit143 a=exit0", change: ended}, corev1.PodSucceeded},
		{scene{policy: never, spec: "side:s a", seen: "s=exit143 a=exit1", change: ended}, corev1.PodFailed},
		{scene{policy: never, spec: "side:s init:i a", seen: "s=running i=exit1"}, corev1.PodPending},
		{scene{policy: never, spec: "side:s init:i a", seen: "s=exit0 i=exit1", change: ended}, corev1.PodFailed},

		// Sent back to its start: b was killed for it and is not started again yet, a has been, and is done.
		{scene{policy: never, spec: "init:i a b", seen: "i=exit0 a=exit0 b=exit137"}, corev1.PodRunning},
		{scene{policy: never, spec: "init:i a b", seen: "i=exit137 a=exit9 b=exit137"}, corev1.PodRunning},

		{scene{policy: always, spec: "a", seen: "a=exit0", change: ended}, corev1.PodSucceeded},
		{scene{policy: always, spec: "a", seen: "a=exit143", change: ended}, corev1.PodFailed},
		{scene{policy: always, spec: "a", change: ended}, corev1.PodFailed},
		{scene{policy: always, spec: "a b", seen: "a=exit0", change: ended}, corev1.PodFailed},
		{scene{policy: always, spec: "init:i a", seen: "i=exit1", change: ended}, corev1.PodFailed},

		{scene{policy: always, spec: "a", seen: "a=running", change: failed}, corev1.PodRunning},
		{scene{policy: always, spec: "a", seen: "a=exit0", change: failed}, corev1.PodFailed},
		{scene{policy: always, spec: "side:s a", seen: "s=running a=exit0", change: failed}, corev1.PodRunning},
		{scene{policy: always, spec: "a", change: failed}, corev1.PodFailed},
	} {
		if got := Build(c.input()).Phase; got != c.want {
			t.Errorf("%s: %s, seen %q: %s, want %s", c.policy, c.spec, c.seen, got, c.want)
		}
	}
}

func TestConditions(t *testing.T) {
	for _, c := range []struct {
		scene
		want string // true conditions, then reason and message of the others that have one
	}{
		{scene{spec: "a"}, "Initialized PodScheduled | Ready ContainersReady: ContainersNotReady containers with unready status: [a]"},
		{
			scene{spec: "a", seen: "sandbox a=running"},
			"PodReadyToStartContainers Initialized Ready ContainersReady PodScheduled",
		},
		{
			scene{spec: "init:i init:j a", seen: "sandbox i=exit0"},
			"PodReadyToStartContainers PodScheduled | Initialized: ContainersNotInitialized containers with incomplete status: [j] | " +
				"Ready ContainersReady: ContainersNotReady containers with unready status: [a]",
		},
		{
			scene{spec: "side:s a", seen: "sandbox s=exit1 a=running"},
			"PodReadyToStartContainers Initialized PodScheduled | Ready ContainersReady: ContainersNotReady containers with unready status: [s]",
		},
		{
			scene{spec: "a", seen: "sandbox=dead a=exit0", change: func(in *Input) { in.Ended = true }},
			"Initialized PodScheduled | Ready ContainersReady: PodCompleted ",
		},
		{
			scene{spec: "a", seen: "sandbox=dead a=exit1", change: func(in *Input) { in.Ended = true }},
			"Initialized PodScheduled | Ready ContainersReady: PodFailed ",
		},
		{
			scene{spec: "a", seen: "sandbox a=running", change: func(in *Input) {
				in.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x"}}
			}},
			"PodReadyToStartContainers Initialized ContainersReady PodScheduled | Ready: ReadinessGatesNotReady " +
				`corresponding condition of pod readiness gate "x" does not exist.`,
		},
		{
			scene{spec: "a", seen: "sandbox a=running", change: func(in *Input) {
				in.Pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x"}}
				in.Conditions = []corev1.PodCondition{{Type: "x", Status: corev1.ConditionTrue}}
			}},
			"PodReadyToStartContainers Initialized Ready ContainersReady PodScheduled x",
		},
	} {
		if got := summary(Build(c.input()).Conditions); got != c.want {
			t.Errorf("%s, seen %q:\n\t%s\nwant\n\t%s", c.spec, c.seen, got, c.want)
		}
	}
}

func summary(list []corev1.PodCondition) string {
	var yes []string
	var no []string
	for _, c := range list {
		switch {
		case c.Status == corev1.ConditionTrue:
			yes = append(yes, string(c.Type))
		case c.Reason == "":
		case len(no) > 0 && strings.HasSuffix(no[len(no)-1], ": "+c.Reason+" "+c.Message):
			no[len(no)-1] = strings.Replace(no[len(no)-1], ":", " "+string(c.Type)+":", 1)
		default:
			no = append(no, fmt.Sprintf("%s: %s %s", c.Type, c.Reason, c.Message))
		}
	}
	return strings.Join(append([]string{strings.Join(yes, " ")}, no...), " | ")
}

func TestTransitionTimes(t *testing.T) {
	s := scene{spec: "a", seen: "sandbox a=running"}
	// Nothing was said before: the times are those of the runtime.
	first := Build(s.input())
	for _, c := range first.Conditions {
		if !c.LastTransitionTime.Before(new(metav1.NewTime(now.Add(-50 * time.Minute)))) {
			t.Errorf("condition %s became %s at %s", c.Type, c.Status, c.LastTransitionTime)
		}
	}
	if !first.StartTime.Equal(new(metav1.NewTime(now.Add(-time.Hour)))) {
		t.Errorf("start time %s", first.StartTime)
	}
	// What stays keeps its time, what changes has a new one.
	s.seen = "sandbox a=exit1"
	s.policy = corev1.RestartPolicyAlways
	in := s.input()
	in.Old = &first
	for _, c := range Build(in).Conditions {
		i := slices.IndexFunc(first.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		changed := c.Type == corev1.PodReady || c.Type == corev1.ContainersReady
		if kept := c.LastTransitionTime.Equal(&first.Conditions[i].LastTransitionTime); kept == changed {
			t.Errorf("condition %s: kept its time: %t", c.Type, kept)
		}
	}
}

func TestContainerStates(t *testing.T) {
	crash := map[string]Waiting{"a": {Reason: "CrashLoopBackOff", Message: "back-off"}}
	for _, c := range []struct {
		scene
		want string
	}{
		{scene{spec: "a"}, "a waiting ContainerCreating ready=false started=false"},
		{scene{spec: "init:i a"}, "i waiting PodInitializing ready=false started=false; a waiting PodInitializing ready=false started=false"},
		{scene{spec: "init:i a", seen: "i=exit0"}, "i Completed(0) ready=true started=false; a waiting ContainerCreating ready=false started=false"},
		{scene{spec: "a", waiting: map[string]Waiting{"a": {Reason: "ErrImagePull"}}}, "a waiting ErrImagePull ready=false started=false"},
		{scene{spec: "a", seen: "a=created"}, "a waiting ContainerCreating ready=false started=false"},
		{scene{spec: "a", seen: "a=running"}, "a running ready=true started=true"},
		{scene{spec: "a", seen: "a=exit1 a=running"}, "a running last=Error(1) ready=true started=true"},
		{scene{spec: "a", seen: "a=created a=running"}, "a running ready=true started=true"},
		{scene{spec: "a", seen: "a=exit1"}, "a Error(1) ready=false started=false"},
		{scene{spec: "a", seen: "a=exit2 a=exit1"}, "a Error(1) last=Error(2) ready=false started=false"},
		{scene{spec: "a", seen: "a=exit2 a=exit1", waiting: crash}, "a waiting CrashLoopBackOff last=Error(1) ready=false started=false"},
		{scene{spec: "a", seen: "a=unknown"}, "a ContainerStatusUnknown(137) signal=9 ready=false started=false"},
		{scene{spec: "a", seen: "a=exit139"}, "a Error(139) signal=11 ready=false started=false"},
		{scene{spec: "a", seen: "a=exit255"}, "a Error(255) ready=false started=false"},
		{scene{spec: "a", seen: "a=running", change: func(in *Input) { in.Starting = map[string]bool{"a": true} }}, "a waiting ContainerCreating ready=false started=false"},
		{scene{spec: "a", seen: "a=exit137", change: func(in *Input) { in.Containers[0].Reason = "OOMKilled" }}, "a OOMKilled(137) signal=9 ready=false started=false"},
		{scene{spec: "a", seen: "a=running", change: probed(false, false)}, "a running ready=false started=false"},
		{scene{spec: "a", seen: "a=running", change: probed(true, false)}, "a running ready=false started=true"},
		{scene{spec: "a", seen: "a=running", change: probed(true, true)}, "a running ready=true started=true"},
		{scene{spec: "a", seen: "a=running", change: probed(false, true)}, "a running ready=false started=false"},
	} {
		st := Build(c.input())
		var got []string
		for _, s := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
			got = append(got, oneLine(s))
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s, seen %q:\n\t%s\nwant\n\t%s", c.spec, c.seen, strings.Join(got, "; "), c.want)
		}
	}
}

func probed(startup, readiness bool) func(*Input) {
	return func(in *Input) {
		in.Pod.Spec.Containers[0].StartupProbe, in.Pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{}, &corev1.Probe{}
		in.Probes = map[string]Probes{"a": {StartupOK: startup, ReadinessOK: readiness}}
	}
}

func oneLine(s corev1.ContainerStatus) string {
	out := s.Name
	switch {
	case s.State.Running != nil:
		out += " running"
	case s.State.Waiting != nil:
		out += " waiting " + s.State.Waiting.Reason
	case s.State.Terminated != nil:
		out += fmt.Sprintf(" %s(%d)", s.State.Terminated.Reason, s.State.Terminated.ExitCode)
		if sig := s.State.Terminated.Signal; sig != 0 {
			out += fmt.Sprintf(" signal=%d", sig)
		}
	}
	if l := s.LastTerminationState.Terminated; l != nil {
		out += fmt.Sprintf(" last=%s(%d)", l.Reason, l.ExitCode)
	}
	return out + fmt.Sprintf(" ready=%t started=%t", s.Ready, *s.Started)
}

func TestContainerFields(t *testing.T) {
	s := scene{spec: "a", seen: "sandbox a=exit1 a=running", change: func(in *Input) {
		in.Messages = map[string]string{"a1": "last words"}
		in.Containers[1].User = &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{Uid: 7, Gid: 8, SupplementalGroups: []int64{9}}}
		in.Pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{
			Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible),
		}}
	}}
	st := Build(s.input())
	c := st.ContainerStatuses[0]
	switch {
	case c.ContainerID != "berth://a2", c.Image != "img:1", c.ImageID != "img@sha256:1", c.RestartCount != 2:
		t.Errorf("%+v", c)
	case c.LastTerminationState.Terminated.Message != "last words", c.LastTerminationState.Terminated.ContainerID != "berth://a1":
		t.Errorf("%+v", c.LastTerminationState.Terminated)
	case c.User.Linux.UID != 7, *c.VolumeMounts[0].RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled:
		t.Errorf("%+v", c)
	case st.HostIP != "192.0.2.1", len(st.HostIPs) != 2, st.PodIP != "10.0.0.2", len(st.PodIPs) != 2, st.QOSClass != corev1.PodQOSBestEffort:
		t.Errorf("%+v", st)
	}
	s.change = func(in *Input) { in.Pod.Spec.HostNetwork = true }
	if st := Build(s.input()); st.PodIP != "192.0.2.1" || len(st.PodIPs) != 2 {
		t.Errorf("a pod in the node's network has address %s", st.PodIP)
	}
}

func BenchmarkBuild(b *testing.B) {
	in := scene{spec: "a", seen: "sandbox a=running"}.input()
	for b.Loop() {
		Build(in)
	}
}

// What was removed is told of as it was last; without that it is only known that it ran.
func TestShedContainers(t *testing.T) {
	const name = "a"
	never := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: ContainerCreating}},
	}}}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name}}}}
	old := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: name, ContainerID: "berth://x", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}},
	}}}
	for _, c := range []struct {
		old    *corev1.PodStatus
		id     string
		reason string
		code   int32
	}{{old, "berth://x", "Error", 3}, {nil, "", "ContainerStatusUnknown", 137}} {
		st := Build(Input{Pod: p, Old: c.old, Now: time.Now(), Failed: true, Ended: true, Shed: true})
		got := st.ContainerStatuses[0]
		if s := got.State.Terminated; st.Phase != corev1.PodFailed || s == nil || s.Reason != c.reason || s.ExitCode != c.code || got.ContainerID != c.id {
			t.Errorf("%s: %+v", st.Phase, got)
		}
	}
	p.Spec.Containers[0].Name = name
	st := Build(Input{Pod: p, Old: never, Now: time.Now(), Shed: true})
	if got := st.ContainerStatuses[0].State; got.Waiting == nil || got.Waiting.Reason != ContainerCreating {
		t.Errorf("one that never ran: %+v", got)
	}
}
