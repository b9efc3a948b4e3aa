package system

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func ephemeralState(p *corev1.Pod, name string) corev1.ContainerState {
	if p != nil {
		for _, s := range p.Status.EphemeralContainerStatuses {
			if s.Name == name {
				return s.State
			}
		}
	}
	return corev1.ContainerState{}
}

// debugged is a pod whose process belongs to a user that root of another container may only touch with CAP_SYS_PTRACE.
const debugged = `
  volumes: [{name: v, emptyDir: {}}]
  containers: [{name: main, image: ` + image + `, command: [sleep, '1000000'], env: [{name: SECRET, value: seen}], securityContext: {runAsUser: 1000}, volumeMounts: [{name: v, mountPath: /v}]}]`

// readsMemory prints the first bytes of the program that process 1 runs, from that process's memory. The kernel lets
// through whom it would let trace the process.
const readsMemory = `at=$(head -n 1 /proc/1/maps | cut -d- -f1) && dd if=/proc/1/mem bs=4096 skip=$((0x$at/4096)) count=1 2>/dev/null | head -c 4 | tail -c 3`

func TestDebug(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", debugged))
	before := n.waitReady("web")

	run := func(name, profile, script string) (stdout, stderr string, code int) {
		t.Helper()
		return n.berth("debug", "web", "--image="+image, "-c", name, "--target=main", "--profile="+profile, "--attach", "--",
			"sh", "-c", script)
	}
	for profile, want := range map[string]string{"general": "seen ELF", "sysadmin": "seen ELF", "baseline": "no memory"} {
		if got, stderr, _ := run("mem-"+profile, profile,
			`grep -qs SECRET=seen /proc/1/environ 2>/dev/null && echo -n 'seen ' || echo -n 'no '; (`+readsMemory+`) 2>/dev/null | grep ELF || echo memory`); strings.TrimSpace(got) != want {
			t.Errorf("%s: %q, want %q (%s)", profile, got, want, stderr)
		}
	}
	if got, _, _ := run("sees", "general",
		"cat /proc/1/cmdline | tr '\\0' ' '; echo; cat /proc/1/root/etc/passwd | head -n 1"); !strings.HasPrefix(got,
		"sleep 1000000 \nroot:") {
		t.Errorf("of the target it sees %q", got)
	}
	if got, stderr, _ := run("net", "netadmin",
		"ip addr add 192.0.2.9/32 dev lo && ip addr show lo"); !strings.Contains(got, "192.0.2.9") {
		t.Errorf("netadmin: %q %q", got, stderr)
	}
	n.must("debug", "web", "--image="+image, "-c", "root", "--profile=restricted", "--", "id", "-u")
	n.wait("web", "without a container that would be root", func(p *corev1.Pod) bool {
		w := ephemeralState(p, "root").Waiting
		return w != nil && w.Reason == "CreateContainerConfigError" && strings.Contains(w.Message, "image will run as root")
	})

	terminal, stderr, code := n.berthIn(strings.NewReader("tty; hostname; exit\n"), "debug", "web", "--image="+image,
		"-it", "-c", "shell", "--env=A=b")
	if code != 0 || !strings.Contains(terminal, "/dev/pts/0") || !strings.Contains(terminal, "web-node") {
		t.Errorf("exit code %d: %q %q", code, terminal, stderr)
	}

	for want, args := range map[string][]string{
		`spec.ephemeralContainers[7].name: Duplicate value: "main"`:           {"-c", "main"},
		`spec.ephemeralContainers[7].targetContainerName: Not found: "other"`: {"--target=other"},
		`"sees" is there already`:     {"-c", "sees"},
		`--profile "legacy": is none`: {"--profile=legacy"},
		`-t without -i`:               {"-t"},
	} {
		if _, stderr, code := n.berth(append([]string{"debug", "web", "--image=" + image}, args...)...); code == 0 ||
			!strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, %q\nwant %s", args, code, stderr, want)
		}
	}

	// A container with a volume of the pod stays as it is when the agent is killed, and so does what has ended.
	custom := filepath.Join(n.Dir, "custom.yaml")
	write(t, custom, "volumeMounts: [{name: v, mountPath: /data}]\nenv: [{name: A, value: b}]\n")
	n.must("debug", "web", "--image="+image, "-c", "stays", "--target=main", "--custom="+custom, "--", "sh", "-c",
		"echo $A > /data/file; sleep 1000000")
	was := ephemeralState(n.wait("web", "debugged",
		func(p *corev1.Pod) bool { return ephemeralState(p, "stays").Running != nil }), "stays")
	n.eventually("the volume to be written", func() error {
		if _, stderr, code := n.berth("exec", "web", "-c", "main", "--", "grep", "-qx", "b", "/v/file"); code != 0 {
			return errors.New(stderr)
		}
		return nil
	})
	n.kill()
	n.start()
	after := n.waitReady("web")
	n.requireSame(before, after)
	if now := ephemeralState(after, "stays"); now.Running == nil || !now.Running.StartedAt.Equal(&was.Running.StartedAt) {
		t.Errorf("after kill -9 it is %+v, was %+v", now, was)
	}
	if ended := ephemeralState(after, "sees").Terminated; ended == nil || ended.ExitCode != 0 ||
		len(after.Spec.EphemeralContainers) != len(after.Status.EphemeralContainerStatuses) {
		t.Errorf("after kill -9: %+v", after.Status.EphemeralContainerStatuses)
	}
	if out := n.must("describe", "web"); !strings.Contains(out, "Ephemeral Containers:") ||
		!strings.Contains(out, "stays:") {
		t.Errorf("described as %s", out)
	}
	n.must("exec", "web", "-c", "stays", "--", "true")

	// Another manifest is another pod, which has none.
	n.apply("web.yaml", strings.Replace(pod("web", debugged), "value: seen", "value: other", 1))
	n.wait("web", "replaced", func(p *corev1.Pod) bool {
		return isReady(p) && p.UID != before.UID && len(p.Spec.EphemeralContainers) == 0
	})
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}

func TestReadinessGates(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", "\n  readinessGates: [{conditionType: example.com/in}]"+sleeping))
	unready := func(message string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			if p == nil {
				return false
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, message) {
					return true
				}
			}
			return false
		}
	}
	n.wait("web", "held by its gate", unready(`"example.com/in" does not exist`))
	if _, stderr, code := n.berth("condition", "web", "Ready=True"); code == 0 ||
		!strings.Contains(stderr, "the agent's own") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	n.must("condition", "web", "example.com/in=True", "--reason=Registered")
	before := n.waitReady("web")
	n.kill()
	n.start()
	n.requireSame(before, n.waitReady("web"))
	n.must("condition", "web", "example.com/in=False")
	n.wait("web", "held again", unready(`but False`))
	n.must("condition", "web", "example.com/in-")
	n.wait("web", "without the condition", unready("does not exist"))
	n.remove("web.yaml")
	n.waitGone("web")
	n.requireNoPods()
}
