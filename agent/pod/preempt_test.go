package pod

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// claiming is a pod of that priority with those requests, of QoS class Guaranteed when they are limits too.
func claiming(name string, prio int32, cpu, memory string, guaranteed bool) *corev1.Pod {
	return newPod(name, func(p *corev1.Pod) {
		p.Spec.Priority = &prio
		if cpu == "" {
			return
		}
		r := &p.Spec.Containers[0].Resources
		r.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
		if guaranteed {
			r.Limits = r.Requests
		}
	})
}

func TestChooseVictims(t *testing.T) {
	here := []*corev1.Pod{
		claiming("best", 0, "", "", false), claiming("small", 0, "100m", "100Mi", false), claiming("big", 0, "1", "1Gi", false),
		claiming("bigger", 0, "1", "2Gi", false), claiming("sure", 0, "1", "1Gi", true), claiming("important", 1000, "8", "64Gi", false),
	}
	for _, c := range []struct{ cpu, memory, pods, want string }{
		{"0", "0", "1", "best"},
		{"100m", "0", "0", "small"},
		{"200m", "0", "0", "big"}, // one is fewer than two
		{"1", "2Gi", "0", "bigger"},
		{"2", "0", "0", "big bigger"},
		{"2500m", "0", "0", "bigger big sure"}, // all that the worse classes have is less
		{"4", "0", "0", "none"},
		{"1", "1Gi", "0", "big"},
	} {
		lacks := corev1.ResourceList{}
		for name, q := range map[corev1.ResourceName]string{"cpu": c.cpu, "memory": c.memory, "pods": c.pods} {
			if q != "0" {
				lacks[name] = resource.MustParse(q)
			}
		}
		got, ok := chooseVictims(claiming("new", 500, "", "", false), here, lacks)
		names := []string{}
		for _, p := range got {
			names = append(names, p.Name)
		}
		want := strings.Fields(c.want)
		slices.Sort(names)
		slices.Sort(want)
		if ok != (c.want != "none") || ok && !slices.Equal(names, want) {
			t.Errorf("%+v: %v %v", c, names, ok)
		}
	}
}

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
		n.cfg.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
		n.start()
		low, mid := claiming("low", 0, "400m", "10Mi", false), claiming("mid", 1000, "400m", "10Mi", false)
		n.rt.term["main"] = 5 * time.Second
		n.apply(low, mid)
		n.is("low", "Running main:0:running")
		// A pod of the same priority waits, and so does one that must not preempt.
		equal, never := claiming("equal", 0, "400m", "10Mi", false), claiming("never", 2_000_000_000, "400m", "10Mi", false)
		never.Spec.PreemptionPolicy = new(corev1.PreemptNever)
		n.apply(equal, never)
		n.is("equal", "Pending(OutOfcpu) main:0:ContainerCreating")
		n.is("never", "Pending(OutOfcpu) main:0:ContainerCreating")
		if got := activeNames(n.m); got != "[low mid]" {
			t.Errorf("beside refused pods those count: %s", got)
		}
		n.remove(equal, never)

		critical := claiming("critical", 2_000_001_000, "500m", "10Mi", false)
		n.apply(critical)
		n.is("low", "Running(Preempting) main:0:running")
		n.is("critical", "Pending(OutOfcpu) main:0:ContainerCreating")
		n.apply(claiming("other", 1, "100m", "10Mi", false)) // asks for another turn of all that wait
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
