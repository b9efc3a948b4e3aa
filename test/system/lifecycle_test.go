package system

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

func bindShared(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
}

func tmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("t", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

func containerState(p *corev1.Pod, name string) corev1.ContainerStatus {
	if p != nil {
		for _, s := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if s.Name == name {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

func terminated(p *corev1.Pod, name string) *corev1.ContainerStateTerminated {
	s := containerState(p, name)
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

func waiting(name, reason string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		w := containerState(p, name).State.Waiting
		return w != nil && w.Reason == reason
	}
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	t.Run("cases", func(t *testing.T) {
		for name, run := range map[string]func(*Node){
			"init-order": initOrder, "sidecar": sidecar, "exit-codes": exitCodes, "oom": oomKilled, "signal": signalled,
			"crash-loop": crashLoop, "on-failure": onFailure, "messages": messages, "hooks": hooks, "replaced": replaced,
			"pull-error": pullError, "bad-command": badCommand, "previous": previous, "config-error": configError, "grace": grace,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				sub := *n
				sub.t = t
				run(&sub)
			})
		}
	})
	n.requireNoPods()
}

// waitFile waits for a file of the host to have that content.
func (n *Node) waitFile(path, want string) {
	n.t.Helper()
	n.eventually(path+" to be written", func() error {
		b, err := os.ReadFile(path)
		if err == nil && string(b) != want {
			err = fmt.Errorf("it has %q, want %q", b, want)
		}
		return err
	})
}

// with applies a manifest for the time of a test.
func (n *Node) with(name, spec string) {
	n.t.Helper()
	n.apply(name+".yaml", pod(name, spec))
	n.t.Cleanup(func() {
		n.remove(name + ".yaml")
		n.waitGone(name)
	})
}

func initOrder(n *Node) {
	n.with("init-order", `
  restartPolicy: Never
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - {name: one, image: `+image+`, command: [sh, -c, 'echo one >> /v/log'], volumeMounts: [{name: v, mountPath: /v}]}
  - {name: two, image: `+image+`, command: [sh, -c, 'echo two >> /v/log'], volumeMounts: [{name: v, mountPath: /v}]}
  containers:
  - {name: main, image: `+image+`, command: [cat, /v/log], volumeMounts: [{name: v, mountPath: /v}]}`)
	p := n.waitPhase("init-order", corev1.PodSucceeded)
	if got := n.must("logs", "init-order", "-c", "main"); got != "one\ntwo\n" {
		n.t.Errorf("order: %q", got)
	}
	for _, c := range []string{"one", "two", "main"} {
		if s := terminated(p, c); s == nil || s.Reason != "Completed" || s.ExitCode != 0 || s.StartedAt.IsZero() ||
			s.FinishedAt.IsZero() {
			n.t.Errorf("container %s: %+v", c, s)
		}
	}
}

func sidecar(n *Node) {
	n.with("sidecar", `
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - {name: side, image: `+image+`, restartPolicy: Always, command: [sh, -c, 'trap "exit 0" TERM; echo up > /v/side; while :; do sleep 1000 & wait; done'], volumeMounts: [{name: v, mountPath: /v}]}
  - {name: after, image: `+image+`, command: [sh, -c, 'while ! test -e /v/side; do sleep 0.05; done'], volumeMounts: [{name: v, mountPath: /v}]}
  containers:
  - {name: main, image: `+image+`, command: [cat, /v/side], volumeMounts: [{name: v, mountPath: /v}]}`)
	p := n.waitPhase("sidecar", corev1.PodSucceeded)
	if s := terminated(p, "side"); s == nil {
		n.t.Errorf("the sidecar still runs: %+v", containerState(p, "side"))
	}
}

func exitCodes(n *Node) {
	n.with("exit-codes", `
  restartPolicy: Never
  containers:
  - {name: zero, image: `+image+`, command: ['true']}
  - {name: three, image: `+image+`, command: [sh, -c, exit 3]}`)
	p := n.waitPhase("exit-codes", corev1.PodFailed)
	if s := terminated(p, "zero"); s == nil || s.ExitCode != 0 || s.Reason != "Completed" {
		n.t.Errorf("zero: %+v", s)
	}
	if s := terminated(p, "three"); s == nil || s.ExitCode != 3 || s.Reason != "Error" {
		n.t.Errorf("three: %+v", s)
	}
}

func oomKilled(n *Node) {
	n.with("oom", `
  restartPolicy: Never
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'exec tail /dev/zero'], resources: {limits: {memory: 32Mi}}}]`)
	p := n.waitPhase("oom", corev1.PodFailed)
	if s := terminated(p, "main"); s == nil || s.ExitCode != 137 || s.Reason != "OOMKilled" {
		n.t.Errorf("main: %+v", s)
	}
}

func signalled(n *Node) {
	n.with("signal", `
  restartPolicy: Never
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'sleep 100 & kill -9 $!; wait $!']}]`)
	p := n.waitPhase("signal", corev1.PodFailed)
	if s := terminated(p, "main"); s == nil || s.ExitCode != 137 || s.Reason != "Error" {
		n.t.Errorf("main: %+v", s)
	}
}

func crashLoop(n *Node) {
	n.with("crash-loop", `
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'echo run; exit 1']}]`)
	p := n.wait("crash-loop", "in CrashLoopBackOff after two restarts", func(p *corev1.Pod) bool {
		return waiting("main", "CrashLoopBackOff")(p) && containerState(p, "main").RestartCount >= 2
	})
	s := containerState(p, "main")
	if p.Status.Phase != corev1.PodRunning || s.LastTerminationState.Terminated == nil ||
		!strings.Contains(s.State.Waiting.Message, "restarting failed container") {
		n.t.Errorf("phase %s, %+v", p.Status.Phase, s)
	}
}

func onFailure(n *Node) {
	n.with("on-failure", `
  restartPolicy: OnFailure
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'test -e /v/x || { touch /v/x; exit 1; }'], volumeMounts: [{name: v, mountPath: /v}]}]`)
	p := n.waitPhase("on-failure", corev1.PodSucceeded)
	if s := containerState(p, "main"); s.RestartCount != 1 {
		n.t.Errorf("restarts: %d, want 1", s.RestartCount)
	}
}

func messages(n *Node) {
	n.with("messages", `
  restartPolicy: Never
  containers:
  - {name: file, image: `+image+`, command: [sh, -c, 'echo -n why > /dev/termination-log; exit 1']}
  - {name: own, image: `+image+`, terminationMessagePath: /tmp/msg, command: [sh, -c, 'echo -n own > /tmp/msg']}
  - {name: logs, image: `+image+`, terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, 'echo last words; exit 1']}`)
	p := n.waitPhase("messages", corev1.PodFailed)
	for c, want := range map[string]string{"file": "why", "own": "own", "logs": "last words\n"} {
		if s := terminated(p, c); s == nil || s.Message != want {
			n.t.Errorf("message of %s: %+v, want %q", c, s, want)
		}
	}
}

func hooks(n *Node) {
	dir := n.Dir + "/host/hooks"
	if err := os.MkdirAll(dir, 0o777); err != nil {
		n.t.Fatal(err)
	}
	// They have the time that they need.
	patient := func(manifest string) string {
		return strings.Replace(manifest, "PeriodSeconds: 1\n", "PeriodSeconds: 120\n", 1)
	}
	n.apply("hooks.yaml", patient(pod("hooks", `
  volumes: [{name: v, hostPath: {path: `+dir+`}}]
  containers:
  - name: main
    image: `+image+`
    command: [sh, -c, 'trap "echo term >> /v/log; exit 0" TERM; touch /v/up; while :; do sleep 1000 & wait; done']
    volumeMounts: [{name: v, mountPath: /v}]
    lifecycle:
      postStart: {exec: {command: [sh, -c, 'echo started >> /v/log']}}
      preStop: {exec: {command: [sh, -c, 'echo stopping >> /v/log']}}`)))
	n.waitReady("hooks")
	n.waitFile(dir+"/log", "started\n")
	n.waitFile(dir+"/up", "") // a process 1 does not hear a signal that it has no trap for
	n.remove("hooks.yaml")
	n.waitGone("hooks")
	if b, _ := os.ReadFile(dir + "/log"); string(b) != "started\nstopping\nterm\n" {
		n.t.Errorf("hooks ran as %q", b)
	}
}

func replaced(n *Node) {
	dir := n.Dir + "/host/replaced"
	if err := os.MkdirAll(dir, 0o777); err != nil {
		n.t.Fatal(err)
	}
	spec := func(v string) string {
		return `
  terminationGracePeriodSeconds: 120
  volumes: [{name: v, hostPath: {path: ` + dir + `}}]
  containers:
  - name: main
    image: ` + image + `
    command: [sh, -c, 'trap "echo end ` + v + ` >> /v/log; exit 0" TERM; echo begin ` + v + ` >> /v/log; while :; do sleep 1000 & wait; done']
    volumeMounts: [{name: v, mountPath: /v}]`
	}
	manifest := func(v string) string {
		return strings.Replace(pod("replaced", spec(v)), "  terminationGracePeriodSeconds: 1\n", "\n", 1)
	}
	n.apply("replaced.yaml", manifest("one"))
	n.t.Cleanup(func() { n.remove("replaced.yaml"); n.waitGone("replaced") })
	first := n.waitReady("replaced")
	// A process that has not got as far as its trap is ended without a word.
	n.waitFile(dir+"/log", "begin one\n")
	n.apply("replaced.yaml", "# a comment changes nothing\n"+manifest("one"))
	n.apply("replaced.yaml", manifest("two"))
	second := n.wait("replaced", "ready with another UID",
		func(p *corev1.Pod) bool { return isReady(p) && p.UID != first.UID })
	if second.UID == first.UID {
		n.t.Error("a changed spec kept its UID")
	}
	n.eventually("the second to begin", func() error {
		b, _ := os.ReadFile(dir + "/log")
		if !strings.HasSuffix(string(b), "begin two\n") {
			return os.ErrNotExist
		}
		if string(b) != "begin one\nend one\nbegin two\n" {
			n.t.Fatalf("the new pod did not wait for the old one: %q", b)
		}
		return nil
	})
}

func pullError(n *Node) {
	n.with("pull-error", `
  containers:
  - {name: main, image: '127.0.0.1:1/none:1'}
  - {name: never, image: 'berth.test/missing:1', imagePullPolicy: Never}`)
	n.wait("pull-error", "in ErrImagePull or ImagePullBackOff", func(p *corev1.Pod) bool {
		return (waiting("main", "ErrImagePull")(p) || waiting("main", "ImagePullBackOff")(p)) &&
			waiting("never", "ErrImageNeverPull")(p)
	})
}

func badCommand(n *Node) {
	n.with("bad-command", `
  restartPolicy: Never
  containers: [{name: main, image: `+image+`, command: [no-such-program]}]`)
	p := n.wait("bad-command", "failed with a message that names the program", func(p *corev1.Pod) bool {
		s := containerState(p, "main")
		// CRI-O has runc make the process when the container is created.
		return s.State.Terminated != nil || waiting("main", "RunContainerError")(p) || n.peer != nil &&
			waiting("main", "CreateContainerError")(p)
	})
	s := containerState(p, "main")
	text := ""
	if s.State.Terminated != nil {
		text = s.State.Terminated.Message
	} else {
		text = s.State.Waiting.Message
	}
	if !strings.Contains(text, "no-such-program") {
		n.t.Errorf("the message does not name the program: %+v", s.State)
	}
}

func previous(n *Node) {
	n.with("previous", `
  restartPolicy: OnFailure
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'test -e /v/x && { echo second; exec sleep 1000; }; touch /v/x; echo first; exit 1'], volumeMounts: [{name: v, mountPath: /v}]}]`)
	n.waitReady("previous")
	n.eventually("the logs of both", func() error {
		if got := n.must("logs", "previous"); got != "second\n" {
			return os.ErrNotExist
		}
		return nil
	})
	if got := n.must("logs", "--previous", "previous"); got != "first\n" {
		n.t.Errorf("previous logs: %q", got)
	}
	if got := n.must("logs", "--timestamps", "--tail=1",
		"previous"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\S+ second\n$`).MatchString(got) {
		n.t.Errorf("timestamps: %q", got)
	}
}

func configError(n *Node) {
	n.with("config-error", `
  containers: [{name: main, image: `+image+`, command: [sleep, '1000'], securityContext: {runAsNonRoot: true}}]`)
	p := n.wait("config-error", "in CreateContainerConfigError", waiting("main", "CreateContainerConfigError"))
	if m := containerState(p, "main").State.Waiting.Message; !strings.Contains(m, "root") {
		n.t.Errorf("message: %s", m)
	}
}

func grace(n *Node) {
	n.apply("grace.yaml", pod("grace", `
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'trap "" TERM; while :; do sleep 1; done']}]`))
	p := n.waitReady("grace")
	n.remove("grace.yaml")
	n.waitGone("grace")
	if procs := n.processesIn(n.podGroup(p)); len(procs) > 0 {
		n.t.Errorf("a container that ignores SIGTERM is left: %q", procs)
	}
}
