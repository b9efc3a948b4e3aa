package system

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// wholePod is a pod that is limited as a whole; its container may have all of that.
func wholePod(cpu, memory string) string {
	return pod("whole", fmt.Sprintf(`
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: %s, memory: %s}}
  containers:
  - name: c
    image: %s
    command: [sh, -c, 'dd if=/dev/zero of=/held/file bs=1M count=24 2>/dev/null; touch /ready; sleep 100000']
    volumeMounts: [{name: held, mountPath: /held}]
  volumes:
  - {name: held, emptyDir: {medium: Memory}}`, cpu, memory, image))
}

// requireLimits asks the kernel what a pod and its first container have.
func (n *Node) requireLimits(name string, milli, mib int64) *corev1.Pod {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s to have %dm and %d MiB", name, milli, mib), func() error {
		p := n.pod(name)
		for _, group := range []string{n.podGroup(p), n.groupOf(p, p.Status.ContainerStatuses[0])} {
			if c, m := limits(n.t, group); c != milli || m != mib<<20 {
				return fmt.Errorf("%s has %dm and %d bytes", group, c, m)
			}
		}
		return nil
	})
	return n.pod(name)
}

// The limits of a pod as a whole are changed while it runs, with those of a container that has none of its own.
func TestResizeWholePod(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("whole.yaml", wholePod("500m", "64Mi"))
	before := n.waitReady("whole")
	n.eventually("the memory to be held", func() error {
		if _, _, code := n.berth("exec", "whole", "--", "cat", "/ready"); code != 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	n.requireLimits("whole", 500, 64)
	for _, c := range []struct {
		cpu, memory string
		milli, mib  int64
	}{{"700m", "96Mi", 700, 96}, {"300m", "128Mi", 300, 128}, {"400m", "48Mi", 400, 48}} {
		n.apply("whole.yaml", wholePod(c.cpu, c.memory))
		n.requireSame(before, n.requireLimits("whole", c.milli, c.mib))
	}
	n.apply("whole.yaml", wholePod("400m", "20Mi"))
	p := n.wait("whole", "refused", func(p *corev1.Pod) bool {
		c := condition(p, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	if c := condition(p, corev1.PodResizeInProgress); !strings.Contains(c.Message, "below what is in use") {
		t.Errorf("the reason: %s", c.Message)
	}
	n.requireSame(before, n.requireLimits("whole", 400, 48))
	if events := n.must("events", "whole"); strings.Contains(events, "CgroupChanged") {
		t.Errorf("a resize was taken for somebody else's change:\n%s", events)
	}
}

// The memory of a pod with a CPU of its own changes, its CPUs do not.
func TestResizePinned(t *testing.T) {
	t.Parallel()
	if all := strings.TrimSpace(readAll(t, "/sys/devices/system/cpu/online")); all != "0-1" {
		t.Skipf("needs a machine with the CPUs 0-1 to know what is given, has %s", all)
	}
	n := startNode(t, "--cpu-manager-policy=static", "--reserved-cpus=0")
	own := pinned("own", "1")
	n.apply("own.yaml", own)
	before := n.waitReady("own")
	n.requireLimits("own", 0, 32)
	own = strings.ReplaceAll(own, "32Mi", "48Mi")
	n.apply("own.yaml", own)
	n.requireSame(before, n.requireLimits("own", 0, 48))
	n.waitCPUs("own", "1")

	n.apply("own.yaml", strings.ReplaceAll(own, `cpu: "1"`, `cpu: "2"`))
	p := n.wait("own", "refused", func(p *corev1.Pod) bool { return condition(p, corev1.PodResizePending) != nil })
	if c := condition(p, corev1.PodResizePending); c.Reason != corev1.PodReasonInfeasible {
		t.Errorf("condition: %+v", c)
	}
	n.requireSame(before, n.requireLimits("own", 0, 48))
	n.waitCPUs("own", "1")
	if events := n.must("events", "own"); strings.Contains(events, "CgroupChanged") {
		t.Errorf("a resize was taken for somebody else's change:\n%s", events)
	}
}

// The agent is killed with -9 at random moments of resizes: the next one finishes what was begun, and nothing restarts.
func TestResizeKilled(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("resizable.yaml", resizable("300m", "64Mi", "32Mi"))
	before := n.waitReady("resizable")
	n.eventually("the memory to be held", func() error {
		if _, _, code := n.berth("exec", "resizable", "-c", "first", "--", "cat", "/ready"); code != 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	rnd := chances(t)
	for i := range int64(12) {
		milli, mib := 100+100*rnd.Int64N(9), 48+8*rnd.Int64N(9)
		n.apply("resizable.yaml", resizable(fmt.Sprintf("%dm", milli), fmt.Sprintf("%dMi", mib), "32Mi"))
		time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		n.kill()
		n.start()
		want := fmt.Sprintf("round %d: %dm and %d MiB", i, milli, mib)
		n.eventually(want, func() error {
			p := n.pod("resizable")
			if p == nil || condition(p, corev1.PodResizeInProgress) != nil {
				return fmt.Errorf("it is %v", p)
			}
			if c, m := limits(t, n.groupOf(p, p.Status.ContainerStatuses[0])); c != milli || m != mib<<20 {
				return fmt.Errorf("the container has %dm and %d bytes", c, m)
			}
			if c, m := limits(t, n.podGroup(p)); c != milli+1000 || m != (mib+48)<<20 {
				return fmt.Errorf("the pod has %dm and %d bytes", c, m)
			}
			s := p.Status.ContainerStatuses[0].Resources
			if s == nil || s.Limits.Cpu().MilliValue() != milli || s.Limits.Memory().Value() != mib<<20 {
				return fmt.Errorf("status tells of %v", s)
			}
			return nil
		})
		n.requireSame(before, n.pod("resizable"))
	}
}
