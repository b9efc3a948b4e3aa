package system

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestEvictionForProcessIDs has a node that wants more process IDs to be left than the machine has, so that it falls
// short without any load. Pods go in order, one after the other: who has the most goes first, and nobody who is
// critical.
func TestEvictionForProcessIDs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-pressure-transition-period=1h")
	n.start()
	const many = "for i in $(seq 20); do sleep 1000000 & done; touch /made; wait"
	n.apply("many.yaml", bomb("many", many, "", ""))
	n.apply("few.yaml", bomb("few", "exec sleep 1000000", "", ""))
	n.apply("critical.yaml", pod("critical", "\n  priorityClassName: system-node-critical"+idle))
	for _, name := range []string{"many", "few"} {
		n.waitReady(name)
	}
	critical := n.waitReady("critical")
	n.eventually("the processes to be there", func() error {
		_, text, code := n.berth("exec", "many", "--", "test", "-e", "/made")
		if code != 0 {
			return fmt.Errorf("not yet %s", text)
		}
		return nil
	})
	limit := min(procNumber(t, "/proc/sys/kernel/pid_max", ""), procNumber(t, "/proc/sys/kernel/threads-max", ""))
	n.stop()
	n.args = append(n.args, fmt.Sprintf("--eviction-hard=pid.available<%d", limit))
	n.start()
	n.requireEvicted("many", "pids")
	n.requireEvicted("few", "pids")
	all := n.requireDecisions(2)
	for i, want := range []string{"many-node", "few-node"} {
		if d := all[i]; d.Pod.Name != want || d.Signal != "pid.available" || d.GraceSeconds != 0 || d.Result.Error != "" {
			t.Errorf("number %d of those that went: %+v", i+1, d)
		}
	}
	n.waitCondition("PIDPressure", "True")
	n.requireSame(critical, n.waitReady("critical"))
	n.apply("late.yaml", pod("late", idle))
	n.wait("late", "waiting", func(p *corev1.Pod) bool {
		return p != nil && p.Status.Phase == corev1.PodPending && p.Status.Reason == "Evicted" && strings.Contains(p.Status.Message, "PIDPressure")
	})
}

// TestHugePagesAreNobodysMemory has a pod use huge pages. They were set aside before, so the node has as much memory
// as without, and they do not count for the pod when memory is short. The group knows whose they are.
func TestHugePagesAreNobodysMemory(t *testing.T) {
	t.Parallel()
	const mib = 16
	if free := procNumber(t, "/proc/meminfo", "HugePages_Free:"); procNumber(t, "/proc/meminfo", "Hugepagesize:") != 2048 || free < mib/2 {
		t.Skipf("needs %d free huge pages of 2 MiB: there are %d", mib/2, free)
	}
	n := startNode(t)
	n.apply("huge.yaml", eater("huge", fmt.Sprintf(", '%d', '0', huge", mib),
		fmt.Sprintf("{requests: {memory: 8Mi, cpu: 10m}, limits: {memory: 64Mi, hugepages-2Mi: %dMi}}", mib), ""))
	n.waitReady("huge")
	n.eventually("the pages to be taken", func() error {
		if out := n.must("logs", "huge"); !strings.Contains(out, "has ") {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	if used := n.groupFile("huge", "hugetlb.2MB.usage_in_bytes", "hugetlb.2MB.current"); used != strconv.Itoa(mib<<20) {
		t.Errorf("its group has %s bytes of huge pages", used)
	}
	if used := n.ranked("huge-node"); used >= mib<<20 {
		t.Errorf("%d bytes count when memory is short, with its huge pages", used)
	}
}

// TestEvictionCountsSwap has a pod with more memory than its limit, the rest of which is in swap: it lives, what it
// may swap counts as memory that is left, and what it has swapped counts as its own.
func TestEvictionCountsSwap(t *testing.T) {
	if !unified() {
		t.Skip("needs cgroup v2: v1 has no limit of swap apart from memory")
	}
	total, swap := procNumber(t, "/proc/meminfo", "MemTotal:"), procNumber(t, "/proc/meminfo", "SwapTotal:")
	const request, limit, eats = 128, 160, 180 // MiB
	if part := swap * request / max(total, 1); part < (eats-limit)*3/2 {
		t.Skipf("needs swap: of %d KiB a pod may have %d MiB", swap, part)
	}
	n := startNode(t, "--swap-behavior=LimitedSwap")
	resources := fmt.Sprintf("{requests: {memory: %dMi}, limits: {memory: %dMi}}", request, limit)
	n.apply("swaps.yaml", eater("swaps", fmt.Sprintf(", '%d'", eats), resources, ""))
	before := n.waitReady("swaps")
	n.eventually("the pod to have all of it", func() error {
		if out := n.must("logs", "swaps"); !strings.Contains(out, "has ") {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	n.requireSame(before, n.waitReady("swaps"))
	if swapped, err := strconv.ParseInt(n.groupFile("swaps", "-", "memory.swap.current"), 10, 64); err != nil || swapped < (eats-limit)<<20 {
		t.Errorf("it has %d bytes in swap, %v", swapped, err)
	}
	if used := n.ranked("swaps-node"); used < eats<<20 {
		t.Errorf("%d bytes count when memory is short, and it has taken %d MiB", used, eats)
	}
	if out := n.must("cgroups", "explain", "swaps"); !strings.Contains(out, "under memory pressure it is number ") || !strings.Contains(out, "above it") {
		t.Error(out)
	}
	const more = 300
	n.apply("bursts.yaml", eater("bursts", fmt.Sprintf(", '%d'", more), resources, "\n  restartPolicy: Never"))
	r := n.oomReports("bursts", 1)[0]
	if d := r.Kill.Dump; d == nil || len(d.Tasks) == 0 || d.Tasks[0].Swap == 0 {
		t.Errorf("killed with its swap full: %+v", r.Kill)
	}
	n.requireSame(before, n.waitReady("swaps"))
}
