package system

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// resizable is a pod with two containers and a sidecar, of which only the second restarts when its memory changes.
func resizable(cpu, memory, second string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: resizable}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: side
    image: ` + image + `
    command: [sleep, "100000"]
    restartPolicy: Always
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: 16Mi}}
  containers:
  - name: first
    image: ` + image + `
    command: [sh, -c, 'dd if=/dev/zero of=/held/file bs=1M count=24 2>/dev/null; touch /ready; sleep 100000']
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: ` + cpu + `, memory: ` + memory + `}}
    volumeMounts: [{name: held, mountPath: /held}]
  - name: second
    image: ` + image + `
    command: [sleep, "100000"]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 500m, memory: ` + second + `}}
    resizePolicy:
    - {resourceName: memory, restartPolicy: RestartContainer}
  volumes:
  - {name: held, emptyDir: {medium: Memory}}
`
}

// limits are what the kernel has for a group: cores in thousandths and bytes.
func limits(t *testing.T, group string) (milli, memory int64) {
	t.Helper()
	var quota, period int64
	text := groupFile("cpu", group, "cpu.cfs_quota_us", "cpu.max") + " " +
		groupFile("cpu", group, "cpu.cfs_period_us", "none")
	if _, err := fmt.Sscan(text, &quota, &period); err == nil && period > 0 && quota > 0 {
		milli = quota * 1000 / period
	}
	if _, err := fmt.Sscan(groupFile("memory", group, "memory.limit_in_bytes", "memory.max"), &memory); err != nil {
		memory = 0
	}
	return milli, memory
}

// TestResize changes the manifest of a pod that runs, and asks the kernel what the pod has then.
func TestResize(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("resizable.yaml", resizable("600m", "64Mi", "32Mi"))
	p := n.waitReady("resizable")
	n.eventually("the memory to be held", func() error {
		if _, _, code := n.berth("exec", "resizable", "-c", "first", "--", "cat", "/ready"); code != 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	ids := func(p *corev1.Pod) [2]string {
		return [2]string{p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[1].ContainerID}
	}
	before := ids(p)
	check := func(p *corev1.Pod, what string, milli, memory, podMilli, podMemory int64) {
		t.Helper()
		if c, m := limits(t, n.groupOf(p, p.Status.ContainerStatuses[0])); c != milli || m != memory<<20 {
			t.Errorf("%s: the container has %dm and %d bytes, want %dm and %d MiB", what, c, m, milli, memory)
		}
		if c, m := limits(t, n.podGroup(p)); c != podMilli || m != podMemory<<20 {
			t.Errorf("%s: the pod has %dm and %d bytes, want %dm and %d MiB", what, c, m, podMilli, podMemory)
		}
	}
	has := func(cpu, memory string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			if p == nil || p.Status.ContainerStatuses[0].Resources == nil {
				return false
			}
			s := p.Status.ContainerStatuses[0]
			return s.Resources.Limits.Cpu().String() == cpu && s.Resources.Limits.Memory().String() == memory &&
				condition(p, corev1.PodResizeInProgress) == nil
		}
	}
	check(p, "at first", 600, 64, 1600, 112)

	// Both grow, both shrink, one grows and the other shrinks: the same containers go on.
	for _, c := range []struct {
		cpu, memory               string
		milli, mib, podMilli, pod int64
	}{{"900m", "128Mi", 900, 128, 1900, 176}, {"50m", "96Mi", 50, 96, 1050, 144}, {"300m", "64Mi", 300, 64, 1300, 112}} {
		n.apply("resizable.yaml", resizable(c.cpu, c.memory, "32Mi"))
		q := n.wait("resizable", "resized to "+c.cpu, has(c.cpu, c.memory))
		check(q, c.cpu, c.milli, c.mib, c.podMilli, c.pod)
		if q.UID != p.UID || ids(q) != before || q.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("the pod did not go on: %s, %v", q.UID, ids(q))
		}
	}

	// Less memory than is in use is refused, and told; the kernel's limit stays. What is possible again happens.
	n.apply("resizable.yaml", resizable("300m", "20Mi", "32Mi"))
	q := n.wait("resizable", "refused", func(p *corev1.Pod) bool {
		c := condition(p, corev1.PodResizeInProgress)
		return c != nil && c.Reason == corev1.PodReasonError
	})
	if c := condition(q, corev1.PodResizeInProgress); !strings.Contains(c.Message, "below what is in use") {
		t.Errorf("the reason: %s", c.Message)
	}
	if got := q.Status.ContainerStatuses[0].Resources.Limits.Memory().String(); got != "64Mi" {
		t.Errorf("status tells of %s", got)
	}
	check(q, "refused", 300, 64, 1300, 112)

	// A crash in the middle: whoever comes next goes on with what was decided.
	n.kill()
	if err := os.Remove("/proc/" + n.processesIn(n.groupOf(q, q.Status.ContainerStatuses[0]))[0] +
		"/root/held/file"); err != nil {
		t.Fatal(err)
	}
	n.start()
	q = n.wait("resizable", "resized after the crash", has("300m", "20Mi"))
	check(q, "after the crash", 300, 20, 1300, 68)
	if q.UID != p.UID || ids(q) != before {
		t.Fatalf("the pod did not survive the crash: %s, %v", q.UID, ids(q))
	}

	// The agent is not there when the manifest changes.
	n.stop()
	n.apply("resizable.yaml", resizable("200m", "40Mi", "32Mi"))
	n.start()
	q = n.wait("resizable", "resized after a restart", has("200m", "40Mi"))
	check(q, "after a restart", 200, 40, 1200, 88)
	if q.UID != p.UID || ids(q) != before {
		t.Fatalf("the pod did not survive the restart: %s, %v", q.UID, ids(q))
	}

	// The second container restarts for its memory, the first does not.
	n.apply("resizable.yaml", resizable("200m", "40Mi", "48Mi"))
	q = n.wait("resizable", "restarted", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[1].RestartCount == 1 &&
			condition(p, corev1.PodResizeInProgress) == nil
	})
	check(q, "after the second's restart", 200, 40, 1200, 104)
	if _, m := limits(t, n.groupOf(q, q.Status.ContainerStatuses[1])); m != 48<<20 || q.UID != p.UID ||
		ids(q)[0] != before[0] {
		t.Errorf("the second container has %d bytes, the first is %s", m, ids(q)[0])
	}

	// More than the node has is told, and nothing changes.
	n.apply("resizable.yaml", strings.ReplaceAll(resizable("4000", "40Mi", "48Mi"),
		"requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 4000", "requests: {cpu: 4000, memory: 16Mi}, limits: {cpu: 4000"))
	q = n.wait("resizable", "infeasible", func(p *corev1.Pod) bool { return condition(p, corev1.PodResizePending) != nil })
	if c := condition(q, corev1.PodResizePending); c.Reason != corev1.PodReasonInfeasible {
		t.Errorf("condition: %+v", c)
	}
	if got := q.Status.ContainerStatuses[0].AllocatedResources.Cpu().String(); got != "10m" {
		t.Errorf("allocated: %s", got)
	}
	check(q, "infeasible", 200, 40, 1200, 104)

	// Anything else that changes makes it another pod.
	n.apply("resizable.yaml", strings.ReplaceAll(resizable("200m", "40Mi", "48Mi"), "sleep 100000", "sleep 100001"))
	n.wait("resizable", "another pod", func(q *corev1.Pod) bool { return isReady(q) && q.UID != p.UID })
	n.remove("resizable.yaml")
	n.requireNoPods()
}

func condition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	for i := 0; p != nil && i < len(p.Status.Conditions); i++ {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
