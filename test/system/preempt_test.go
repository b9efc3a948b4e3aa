package system

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPreemption makes room on a full node for a critical pod, but not for one that must not preempt. The pod that has
// gone for it returns after it.
func TestPreemption(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--max-pods=2")
	n.apply("low.yaml", pod("low", sleeping))
	n.apply("high.yaml", pod("high", "\n  priority: 1000"+sleeping))
	n.waitReady("low")
	before := n.waitReady("high")
	n.apply("polite.yaml", pod("polite",
		"\n  priorityClassName: system-node-critical\n  preemptionPolicy: Never"+sleeping))
	n.wait("polite", "waiting", held("OutOfpods", "capacity: 2"))
	n.remove("polite.yaml")
	n.waitGone("polite")
	n.apply("critical.yaml", pod("critical", "\n  priorityClassName: system-node-critical"+sleeping))
	n.waitReady("critical")
	p := n.waitPhase("low", corev1.PodFailed)
	target := false
	for _, c := range p.Status.Conditions {
		target = target || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason == corev1.PodReasonTerminationByKubelet
	}
	if p.Status.Reason != "Preempting" || !target {
		t.Errorf("preempted it is %s %q: %+v", p.Status.Reason, p.Status.Message, p.Status.Conditions)
	}
	if events := n.must("events"); !strings.Contains(events, "Preempted in order to admit critical pod") {
		t.Errorf("events:\n%s", events)
	}
	n.requireSame(before, n.waitReady("high"))
	// Nobody else would make it again: it is there when there is room, with an agent that was killed in between.
	n.kill()
	n.start()
	if p := n.waitPhase("low", corev1.PodFailed); p.Status.Reason != "Preempting" {
		t.Errorf("after a restart of the agent it is %s", p.Status.Reason)
	}
	n.remove("critical.yaml")
	n.waitGone("critical")
	n.waitReady("low")
	n.requireSame(before, n.waitReady("high"))
	for _, name := range []string{"low", "high"} {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	n.requireNoPods()
}
