package system

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/oom"
)

// requireLog skips where the kernel's log cannot be read, or not on v2.
func requireLog(t *testing.T) {
	t.Helper()
	if !unified() {
		t.Skip("needs cgroup v2: TestOOMReport is of v1 too")
	}
	l, err := oom.OpenLog(oom.LogPath, true)
	if err != nil {
		t.Skipf("needs the kernel's log: %v", err)
	}
	l.Close()
}

// reached is the limit that a kill was for, by the log.
func reached(r *oom.Report) string { return fmt.Sprintf("%s, %d", r.LimitName, r.Kill.Limit>>20) }

// TestOOMReportsOfLimits has the kernel kill for a container's limit, for the pod's, and a child only. Reports have
// all figures on v2: the limit, use by type, the peak, pressure and the table of tasks. Nobody else makes the kernel
// tell much meanwhile, so that it tells all.
func TestOOMReportsOfLimits(t *testing.T) {
	requireLog(t)
	n := newNode(t)
	n.start()
	const eats = "command: [/test/eat, '64'], volumeMounts: [{name: test, mountPath: /test, readOnly: true}]"
	volume := "\n  volumes: [{name: test, hostPath: {path: " + bin("test") + "}}]"
	// What keeps a pod has memory of the pod's limit: that of a container is reached first where another one leaves
	// room.
	const limited = ", resources: {limits: {memory: 32Mi}}}"
	const beside = "\n  - {name: beside, image: " + image + ", command: [sleep, '1000000']"
	main := "\n  containers:\n  - {name: main, image: " + image + ", " + eats
	n.apply("container.yaml", pod("container", "\n  restartPolicy: Never"+main+limited+beside+limited+volume))
	n.apply("whole.yaml", pod("whole", "\n  restartPolicy: Never\n  resources: {limits: {memory: 48Mi}}"+main+"}"+beside+"}"+volume))
	const first = "command: [/test/eat, '64']"
	goesOn := strings.Replace(main, first, "command: [sh, -c, '/test/eat 64; exec sleep 1000000']", 1)
	n.apply("child.yaml", strings.Replace(pod("child", goesOn+limited+beside+limited+volume),
		"name: child", "name: child, annotations: {berth.node/oom-group: none}", 1))
	for name, want := range map[string]struct {
		reached string
		after   oom.State
	}{
		"container": {"the container itself, 32", oom.Ended}, "whole": {"the pod, 48", oom.Ended}, "child": {"the container itself, 32", oom.Runs},
	} {
		r := n.oomReports(name, 1)[0]
		if r.Source != oom.FromLog || r.Kill.Comm != "eat" || r.Container != "main" || r.Pod != name+"-node" || reached(&r) != want.reached ||
			r.After.State != want.after || r.Kill.Constraint != "CONSTRAINT_MEMCG" {
			t.Errorf("%s: %s of %s, limit %s, then %+v", name, r.Kill.Describe(r.LimitName), r.Container, reached(&r), r.After)
		}
		d := r.Kill.Dump
		if d == nil || d.ByType["anon"] < 16<<20 || len(d.Tasks) == 0 || d.Tasks[0].RSS == 0 || len(d.Counters) == 0 || d.Counters[0].Limit == 0 {
			t.Errorf("%s: the kernel's dump: %+v", name, d)
		}
		last := len(r.Groups) - 1 // a container's is gone with its last process, the pod's is there
		if last < 0 {
			t.Errorf("%s: no figures of groups", name)
			continue
		}
		if g := r.Groups[last]; g.Peak < 16<<20 || g.Pressure == nil || g.Kills == 0 {
			t.Errorf("%s: figures of %s: %+v", name, g.Group, g)
		}
		if r.Node == nil || r.Node.Pressure == nil || r.Node.Available <= 0 {
			t.Errorf("%s: the node's: %+v", name, r.Node)
		}
	}
	if p := n.pod("child"); p.Status.Phase != corev1.PodRunning || p.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("a child alone was killed: %+v", p.Status)
	}
	out := n.must("eviction", "oom", "whole")
	for _, want := range []string{"by type: ", "anon ", "PID", " eat", "peak ", "waited for memory in ", "known from: kernel log"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// withoutLog is a command that runs another one which cannot read the kernel's log: it has no right to, or, where
// CAP_SYS_ADMIN is enough for that (as up to Linux 6.1), finds something in its place that is not to be opened.
func (n *Node) withoutLog() []string {
	n.t.Helper()
	drop := []string{"setpriv", "--bounding-set=-syslog", "--inh-caps=-syslog"}
	if out, err := exec.Command(drop[0], append(drop[1:], "true")...).CombinedOutput(); err != nil {
		n.t.Skipf("needs setpriv: %v: %s", err, out)
	}
	if exec.Command(drop[0], append(drop[1:], "dd", "if="+oom.LogPath, "of=/dev/null", "count=0")...).Run() != nil {
		return drop
	}
	if err := exec.Command("mountpoint", "-q", "/dev").Run(); err != nil {
		n.t.Skipf("needs a /dev that is mounted: %v", err)
	}
	socket := filepath.Join(n.Dir, "nothing")
	l, err := net.Listen("unix", socket)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close() })
	const hide = `mount --make-private /dev; mount --bind "$0" /dev/kmsg; exec "$@"`
	return []string{"unshare", "--mount", "--propagation=unchanged", "sh", "-ec", hide, socket}
}

// TestOOMWithoutLog has an agent that may not read the kernel's log. It tells of kills by the counters of groups.
func TestOOMWithoutLog(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.under = n.withoutLog()
	n.start()
	n.apply("child.yaml", strings.Replace(pod("child", "\n  containers: [{name: main, image: "+image+
		", command: [sh, -c, 'tail /dev/zero; exec sleep 1000000'], resources: {limits: {memory: 32Mi}}}]"),
		"name: child", "name: child, annotations: {berth.node/oom-group: none}", 1))
	n.apply("whole.yaml", pod("whole", "\n  restartPolicy: Never\n  containers: [{name: main, image: "+image+
		", command: [sh, -c, 'exec tail /dev/zero'], resources: {limits: {memory: 32Mi}}}]"))
	child := n.oomReports("child", 1)[0]
	if child.Source != oom.FromCounts || child.Container != "main" || child.Kill.Pid != 0 || child.Kill.Dump != nil ||
		child.After.State != oom.Runs || len(child.Groups) == 0 {
		t.Errorf("%+v, then %+v", child, child.After)
	}
	whole := n.oomReports("whole", 1)[0]
	if whole.Source == oom.FromLog || whole.Container != "main" || whole.After.State != oom.Ended || whole.After.Reason != "OOMKilled" {
		t.Errorf("%+v, then %+v", whole, whole.After)
	}
	n.killsTold("child", "whole")
	if out := n.must("eviction", "oom", "child"); !strings.Contains(out, "known from: group's counters") {
		t.Error(out)
	}
}
