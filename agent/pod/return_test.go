package pod

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/podtest"
)

// small is a node that pods have to share.
func small(t *testing.T, cpu string, test func(n *testNode)) {
	t.Helper()
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.Node.Allocatable = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
		n.start()
		test(n)
	})
}

func TestPreemptedReturns(t *testing.T) {
	small(t, "1", func(n *testNode) {
		low, once, critical := podtest.Claiming("low", 0, "600m", "10Mi", false), podtest.Claiming("once", 0, "400m", "10Mi", false), podtest.Claiming("critical", 2_000_000_000, "1", "10Mi", false)
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		n.apply(low, once)
		n.apply(critical)
		n.pass(time.Minute)
		n.is("critical", "Running main:0:running")
		n.is("low", "Failed(Preempting) main:0:Error(143)")
		n.restart()
		n.is("low", "Failed(Preempting) main:0:Error(143)")
		n.remove(critical)
		n.pass(time.Minute)
		n.is("low", "Running main:0:running")
		n.is("once", "Failed(Preempting) main:0:Error(143)") // it has had its run
		if got := n.happened("low"); strings.Count(got, "Returning") != 1 {
			t.Errorf("events of low: %s", got)
		}
		n.remove(low, once)
		n.pass(time.Minute)
		n.gone(low, once, critical)
	})
}

// diesReleasing is volumes during whose release the agent is killed.
type diesReleasing struct{ Volumes }

func (v diesReleasing) Release(ctx context.Context, uid types.UID) error {
	if err := v.Volumes.Release(ctx, uid); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestKilledWhileReleasing has the agent die while the volumes of a pod go that the node has ended: it stays ended.
func TestKilledWhileReleasing(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		volumes := n.cfg.Volumes
		n.cfg.Volumes = diesReleasing{volumes}
		n.start()
		p := podtest.New("web")
		n.apply(p)
		n.pass(time.Minute)
		if err := n.m.Evict(p.UID, Eviction{Reason: "Evicted", Message: "for a test", GraceSeconds: 1}); err != nil {
			t.Fatal(err)
		}
		n.pass(time.Minute)
		n.stop()
		n.cfg.Volumes = volumes
		n.start()
		n.pass(time.Minute)
		n.is("web", "Failed(Evicted) main:0:Error(143)")
		n.remove(p)
		n.pass(time.Minute)
		n.gone(p)
	})
}

// TestPromisedResources has the pods that end for another one not take what they have left, before all of them have
// ended.
func TestPromisedResources(t *testing.T) {
	small(t, "1", func(n *testNode) {
		fast, slow := podtest.Claiming("fast", 0, "500m", "10Mi", false), podtest.Claiming("slow", 0, "500m", "10Mi", false)
		fast.Spec.Containers[0].Name, slow.Spec.Containers[0].Name = "fast", "slow"
		n.rt.term["fast"], n.rt.term["slow"] = time.Second, 20*time.Second
		n.apply(fast, slow)
		critical, other := podtest.Claiming("critical", 2_000_000_000, "800m", "10Mi", false), podtest.Claiming("other", 0, "300m", "10Mi", false)
		n.apply(critical)
		n.pass(5 * time.Second)
		n.is("fast", "Failed(Preempting) fast:0:Error(143)")
		n.is("critical", "Pending(OutOfcpu) main:0:ContainerCreating")
		n.apply(other)
		n.pass(time.Second)
		n.is("other", "Pending(OutOfcpu) main:0:ContainerCreating")
		// A more important one takes what is free, and the critical one waits on.
		system := podtest.Claiming("system", 2_000_001_000, "100m", "10Mi", false)
		n.apply(system)
		n.is("system", "Running main:0:running")
		n.pass(time.Minute)
		n.is("critical", "Running main:0:running")
		n.is("slow", "Failed(Preempting) slow:0:Error(143)")
		for _, name := range []string{"fast", "slow"} {
			if got := n.happened(name); strings.Count(got, "Preempting") != 1 || strings.Contains(got, "Returning") {
				t.Errorf("events of %s: %s", name, got)
			}
		}
		// With half of it free again one of the two returns, and the other one does as soon as it can.
		n.remove(critical, other)
		n.pass(time.Minute)
		n.is("fast", "Running fast:0:running")
		n.is("slow", "Failed(Preempting) slow:0:Error(143)")
		n.remove(system)
		n.pass(time.Minute)
		n.is("slow", "Running slow:0:running")
	})
}

// TestReturnLater lets a pod that takes too much run again after a time that grows.
func TestReturnLater(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		held := func() int { return len(NewEvictor(n.m).Here()) } // to its limits
		evict := func() {
			t.Helper()
			if held() != 1 {
				t.Error("it has no limits where it runs")
			}
			if err := n.m.Evict(p.UID, Eviction{Reason: "Evicted", GraceSeconds: 1, Return: ReturnDelayed}); err != nil {
				t.Fatal(err)
			}
			n.pass(time.Second)
			n.is("web", "Failed(Evicted) main:0:Error(143)")
			if held() != 0 {
				t.Error("it is told to end once and for all")
			}
		}
		for _, delay := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			evict()
			n.pass(delay - 2*time.Second)
			n.is("web", "Failed(Evicted) main:0:Error(143)")
			n.pass(3 * time.Second)
			n.is("web", "Running main:0:running")
		}
		n.pass(time.Hour) // it has done well since then
		evict()
		n.pass(11 * time.Second)
		n.is("web", "Running main:0:running")
		n.remove(p)
		n.pass(time.Minute)
		n.gone(p)
	})
}

// TestReturnOpened: the machine is not shut down after all. An agent that does not know that leaves its pods as they
// are.
func TestReturnOpened(t *testing.T) {
	onNode(t, func(n *testNode) {
		p := podtest.New("web")
		n.apply(p)
		n.m.Close(true)
		if err := n.m.Evict(p.UID, Eviction{Reason: "Terminated", Boot: BootID(), Return: ReturnOpened}); err != nil {
			t.Fatal(err)
		}
		n.pass(time.Minute)
		n.restart()
		n.pass(time.Minute)
		n.is("web", "Failed(Terminated) main:0:Error(143)")
		n.m.Close(false)
		n.pass(time.Minute)
		n.is("web", "Running main:0:running")
	})
}

// TestOverHasNoPorts: a pod that is over keeps no port from others.
func TestOverHasNoPorts(t *testing.T) {
	port := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}
	onNode(t, func(n *testNode) {
		job, web := podtest.New("job", podtest.Policy(corev1.RestartPolicyNever), port), podtest.New("web", port)
		n.apply(job, web)
		n.is("web", "Pending(NodePorts) main:0:ContainerCreating")
		n.rt.exit("main-0", 0)
		n.pass(time.Minute)
		n.is("job", "Succeeded main:0:Completed(0)")
		n.is("web", "Running main:0:running")
	})
}
