package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups/oom"
)

// oomReports waits until that many are complete, and returns them.
func (n *Node) oomReports(pod string, count int) []oom.Report {
	n.t.Helper()
	var all []oom.Report
	n.eventually("reports of kills in "+pod, func() error {
		out, _, code := n.berth("eviction", "oom", pod, "-o", "json")
		if code != 0 {
			return fmt.Errorf("exit code %d", code)
		}
		var said struct{ Reports []oom.Report }
		if err := json.Unmarshal([]byte(out), &said); err != nil {
			return err
		}
		all = said.Reports
		for _, r := range all {
			if r.After == nil {
				return errors.New("what became of the container is not known")
			}
		}
		if len(all) != count {
			return fmt.Errorf("%d of %d: %s", len(all), count, out)
		}
		return nil
	})
	return all
}

// killsTold waits for the events of pods of which there are reports.
func (n *Node) killsTold(pods ...string) {
	n.t.Helper()
	n.eventually("events of the kills", func() error {
		out := n.must("events", "--reason", "OOMKilling")
		for _, name := range pods {
			if !strings.Contains(out, name+"-node") {
				return fmt.Errorf("none of %s:\n%s", name, out)
			}
		}
		return nil
	})
}

// TestOOMReport has the kernel kill a child, after which its container goes on, and a container as a whole. Both are
// told of as events and as reports, which outlive the agent and their pods.
func TestOOMReport(t *testing.T) {
	t.Parallel()
	l, err := oom.OpenLog(oom.LogPath, true)
	logged := err == nil
	if logged {
		l.Close()
	} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EPERM) && !errors.Is(err, fs.ErrPermission) {
		t.Fatal(err)
	}
	n := newNode(t)
	n.start()
	n.apply("child.yaml", strings.Replace(pod("child", `
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'tail /dev/zero; echo went on; sleep 1000000'], resources: {limits: {memory: 32Mi}}}]`),
		"name: child", "name: child, annotations: {berth.node/oom-group: none}", 1))
	n.apply("whole.yaml", pod("whole", `
  restartPolicy: Never
  containers: [{name: main, image: `+image+`, command: [sh, -c, 'exec tail /dev/zero'], resources: {limits: {memory: 32Mi}}}]`))
	child := n.oomReports("child", 1)[0]
	if child.After.State != oom.Runs || child.Pod != "child-node" || child.Container != "main" || child.Count != 1 {
		t.Errorf("child: %+v, %+v", child, child.After)
	}
	if n.pod("child").Status.Phase != corev1.PodRunning {
		t.Error("the container did not go on")
	}
	whole := n.oomReports("whole", 1)[0]
	if whole.After.State != oom.Ended || whole.After.ExitCode != 137 || whole.After.Reason != "OOMKilled" {
		t.Errorf("whole: %+v, %+v", whole, whole.After)
	}
	for _, r := range []oom.Report{child, whole} {
		gone := len(r.Groups) == 0 && r.Pod == whole.Pod && logged // with its last process
		if !gone && (len(r.Groups) == 0 || r.Groups[0].Peak < 16<<20) || r.Node == nil || r.Node.Available <= 0 {
			t.Errorf("%s: figures %+v, node %+v", r.Pod, r.Groups, r.Node)
		}
		// No dump: the log had too much to tell. Usage by type is what the kernel has summed up of its processors'
		// counts by then, which may be a part of it; what a task has is exact.
		big := func(t oom.Task) bool { return t.RSS >= 8<<20 } // by type newer kernels have it alone
		if d := r.Kill.Dump; logged && d != nil && (d.ByType["anon"] == 0 || !slices.ContainsFunc(d.Tasks, big) || len(d.Counters) == 0) {
			t.Errorf("%s: dump %+v", r.Pod, d)
		}
	}
	n.killsTold("child", "whole")
	if out := n.must("eviction", "oom", "child"); !strings.Contains(out, "then: only a child was killed") || !strings.Contains(out, "files of ") {
		t.Error(out)
	}
	n.kill()
	n.start()
	if again := n.oomReports("whole", 1)[0]; again.Kill.Pid != whole.Kill.Pid || again.After.Reason != "OOMKilled" {
		t.Errorf("after a restart: %+v", again)
	}
	n.remove("whole.yaml")
	n.waitGone("whole")
	if n.oomReports("whole", 1); !strings.Contains(n.must("__complete", "eviction", "oom", ""), "whole-node\tkilled") {
		t.Error("a pod that is gone is not completed")
	}
	if out := n.must("events", "--reason", "OOMKilling"); strings.Count(out, "child-node") != 1 {
		t.Errorf("told again:\n%s", out)
	}
	if _, _, code := n.berth("eviction", "oom", "nobody"); code != 4 {
		t.Errorf("exit code %d", code)
	}
}
