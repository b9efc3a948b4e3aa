package system

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/systemd/systemdtest"
)

// TestMachineShutdown has a login manager on a bus of its own shut the machine down. The plain pod ends before the
// critical one does, and both before the machine may go.
func TestMachineShutdown(t *testing.T) {
	t.Parallel()
	login := systemdtest.Start(t, 5*time.Minute) // they end when they are told, however late that is
	n := newNode(t, "--shutdown-grace-period=200s", "--shutdown-grace-period-critical-pods=100s")
	n.env = []string{"DBUS_SYSTEM_BUS_ADDRESS=" + login.Address}
	said := filepath.Join(n.Dir, "said")
	write(t, said, "")
	speaker := func(name, more string) string {
		return pod(name, "\n  terminationGracePeriodSeconds: 90"+more+"\n  volumes: [{name: said, hostPath: {path: "+
			""+said+", type: File}}]"+
			"\n  containers: [{name: main, image: "+image+", command: [sh, -c, 'trap \"echo "+name+" >> /said; exit 0\" TERM; "+
			"touch /up; while true; do sleep 0.1; done'], volumeMounts: [{name: said, mountPath: /said}],"+
			// before that the shell, a process 1, would not hear the signal
			" readinessProbe: {exec: {command: [test, -e, /up]}}}]")
	}
	n.apply("critical.yaml", speaker("critical", "\n  priorityClassName: system-node-critical\n  priority: 2000001000"))
	n.apply("plain.yaml", speaker("plain", ""))
	n.start()
	n.waitReady("critical")
	n.waitReady("plain")

	lock := <-login.Taken
	login.Shutdown(t, true)
	<-lock.Released
	b, err := os.ReadFile(said)
	if err != nil || !slices.Equal(strings.Fields(string(b)), []string{"plain", "critical"}) {
		t.Errorf("they said %q, %v", b, err)
	}
	for _, name := range []string{"plain", "critical"} {
		p := n.waitPhase(name, corev1.PodFailed)
		if p.Status.Reason != "Terminated" ||
			!slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.DisruptionTarget && c.Reason == "TerminationByKubelet"
			}) {
			t.Errorf("%s: %+v", name, p.Status)
		}
	}
	refused := func() {
		t.Helper()
		n.wait("late", "refused", func(p *corev1.Pod) bool { return p != nil && p.Status.Reason == "NodeShutdown" })
	}
	n.apply("late.yaml", pod("late", sleeping))
	refused()
	// An agent that is killed in the middle leaves them ended, and lets nobody in either.
	n.kill()
	n.start()
	if p := n.waitPhase("plain", corev1.PodFailed); p.Status.Reason != "Terminated" {
		t.Errorf("after a restart of the agent: %+v", p.Status)
	}
	refused()
	// The machine is not shut down after all.
	login.Shutdown(t, false)
	for _, name := range []string{"late", "plain", "critical"} {
		n.waitReady(name)
	}
	<-login.Taken
	// At the next time it is.
	n.remove("late.yaml")
	n.waitGone("late")
	login.Shutdown(t, true)
	n.waitPhase("critical", corev1.PodFailed)
	n.stop()
	marks, err := filepath.Glob(filepath.Join(n.Dir, "root/pods/*/ending.json"))
	if err != nil || len(marks) != 2 {
		t.Fatalf("%v, %v", marks, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range marks {
		b, err := os.ReadFile(m)
		if err != nil || !strings.Contains(string(b), strings.TrimSpace(string(boot))) {
			t.Fatalf("%s: %v", b, err)
		}
		write(t, m, strings.ReplaceAll(string(b), strings.TrimSpace(string(boot)), "the-one-before"))
	}
	login.Shutdown(t, false)
	n.start()
	n.waitReady("plain")
	n.waitReady("critical")
}
