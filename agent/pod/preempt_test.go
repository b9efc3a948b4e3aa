package pod

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/pod/podtest"
)

func activeNames(m *Manager) string {
	var out []string
	for _, p := range m.Active() {
		out = append(out, p.Name)
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

func TestPreemption(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.Node.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
		n.start()
		low, mid := podtest.Claiming("low", 0, "400m", "10Mi", false), podtest.Claiming("mid", 1000, "400m", "10Mi", false)
		n.rt.term["main"] = 5 * time.Second
		n.apply(low, mid)
		n.is("low", "Running main:0:running")
		// A pod of the same priority waits, and so does one that must not preempt.
		equal, never := podtest.Claiming("equal", 0, "400m", "10Mi", false), podtest.Claiming("never", 2_000_000_000, "400m", "10Mi", false)
		never.Spec.PreemptionPolicy = new(corev1.PreemptNever)
		n.apply(equal, never)
		n.is("equal", "Pending(OutOfcpu) main:0:ContainerCreating")
		n.is("never", "Pending(OutOfcpu) main:0:ContainerCreating")
		if got := activeNames(n.m); got != "[low mid]" {
			t.Errorf("beside refused pods those count: %s", got)
		}
		n.remove(equal, never)

		critical := podtest.Claiming("critical", 2_000_001_000, "500m", "10Mi", false)
		n.apply(critical)
		n.is("low", "Running(Preempting) main:0:running")
		n.is("critical", "Pending(OutOfcpu) main:0:ContainerCreating")
		n.apply(podtest.Claiming("other", 1, "100m", "10Mi", false)) // asks for another turn of all that wait
		n.pass(5 * time.Second)
		n.is("critical", "Running main:0:running")
		n.is("mid", "Running main:0:running")
		if got := activeNames(n.m); got != "[critical mid other]" {
			t.Errorf("beside a pod that has ended those count: %s", got)
		}
		n.is("low", "Failed(Preempting) main:0:Error(143)")
		if got := n.message("low", "Preempting"); got != "Preempted in order to admit critical pod" {
			t.Errorf("event %q", got)
		}
		i := slices.IndexFunc(n.pod("low").Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
		if i < 0 || n.pod("low").Status.Conditions[i].Reason != corev1.PodReasonTerminationByKubelet || n.pod("low").Status.Conditions[i].Status != corev1.ConditionTrue {
			t.Errorf("conditions: %+v", n.pod("low").Status.Conditions)
		}
		n.restart()
		n.is("low", "Failed(Preempting) main:0:Error(143)")
		n.is("critical", "Running main:0:running")
	})
}
