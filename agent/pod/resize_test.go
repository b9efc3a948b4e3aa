package pod

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/agent/pod/podtest"
)

func sized(cpu, memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("1Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse(memory)},
			}
		}
	}
}

// resizeState is a pod's resize in one line.
func resizeState(p *corev1.Pod) string {
	s := p.Status.ContainerStatuses[0]
	out := "allocated " + s.AllocatedResources.Cpu().String() + " has " + s.Resources.Requests.Cpu().String() + "/" + s.Resources.Limits.Memory().String()
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress {
			out += " " + string(c.Type) + ":" + c.Reason
		}
	}
	return out
}

func (n *testNode) resizeIs(name, want string) {
	n.t.Helper()
	if got := resizeState(n.pod(name)); got != want {
		n.t.Errorf("pod %s: %s, want %s", name, got, want)
	}
}

func TestResizeInPlace(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.apply(podtest.New("web", sized("100m", "64Mi")))
		n.resizeIs("web", "allocated 100m has 100m/64Mi")
		n.apply(podtest.New("web", sized("200m", "32Mi")))
		n.resizeIs("web", "allocated 200m has 200m/32Mi")
		n.is("web", "Running main:0:running")
		n.restart()
		n.resizeIs("web", "allocated 200m has 200m/32Mi")
		if got := n.rt.containers["main-0"].config.GetLinux().GetResources(); got.GetCpuShares() != 204 || got.GetMemoryLimitInBytes() != 32<<20 || got.GetCpuQuota() != -1 {
			t.Errorf("the runtime was told %v", got)
		}
		n.rt.exit("main-0", 1)
		n.pass(time.Second)
		n.is("web", "Running main:1:running<Error(1)")
		n.resizeIs("web", "allocated 200m has 200m/32Mi")
	})
}

// A resize waits until others have gone that have what it wants.
func TestResizeDeferred(t *testing.T) {
	onNode(t, func(n *testNode) {
		n.stop()
		n.cfg.Node.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}
		n.start()
		other := podtest.New("other", sized("600m", "64Mi"))
		n.apply(podtest.New("web", sized("100m", "64Mi")), other)
		n.apply(podtest.New("web", sized("500m", "64Mi")))
		n.resizeIs("web", "allocated 100m has 100m/64Mi PodResizePending:Deferred")
		n.restart()
		n.resizeIs("web", "allocated 100m has 100m/64Mi PodResizePending:Deferred")
		n.apply(podtest.New("web", sized("2", "64Mi")))
		n.resizeIs("web", "allocated 100m has 100m/64Mi PodResizePending:Infeasible")
		n.apply(podtest.New("web", sized("500m", "64Mi")))
		n.remove(other)
		n.pass(time.Second)
		n.resizeIs("web", "allocated 500m has 500m/64Mi")
		n.apply(podtest.New("web", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1m"), "memory": resource.MustParse("1Gi")}
		}))
		n.resizeIs("web", "allocated 500m has 500m/64Mi PodResizePending:Infeasible") // of another class
	})
}

// What cannot be done is told, survives a restart of the agent, and is done when it can.
func TestResizeRefused(t *testing.T) {
	onNode(t, func(n *testNode) {
		var inUse atomic.Bool
		n.cgroups.refuse = func() error {
			if inUse.Load() {
				return errors.New("in use")
			}
			return nil
		}
		n.apply(podtest.New("web", sized("100m", "64Mi")))
		inUse.Store(true)
		n.apply(podtest.New("web", sized("100m", "32Mi")))
		n.resizeIs("web", "allocated 100m has 100m/64Mi PodResizeInProgress:Error")
		n.restart()
		n.resizeIs("web", "allocated 100m has 100m/64Mi PodResizeInProgress:Error")
		inUse.Store(false)
		n.pass(time.Minute)
		n.resizeIs("web", "allocated 100m has 100m/32Mi")
		inUse.Store(true)
		n.apply(podtest.New("web", sized("100m", "16Mi")))
		n.resizeIs("web", "allocated 100m has 100m/32Mi PodResizeInProgress:Error")
		inUse.Store(false)
		n.apply(podtest.New("web", sized("100m", "32Mi"))) // taken back
		n.resizeIs("web", "allocated 100m has 100m/32Mi")
	})
}

func TestResizeByRestart(t *testing.T) {
	onNode(t, func(n *testNode) {
		policy := func(p *corev1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		}
		n.apply(podtest.New("web", podtest.Containers("a", "b"), sized("100m", "64Mi"), policy))
		n.apply(podtest.New("web", podtest.Containers("a", "b"), sized("100m", "32Mi"), policy))
		n.pass(2 * time.Second)
		if p := n.pod("web"); p.Status.ContainerStatuses[0].RestartCount != 1 || p.Status.ContainerStatuses[1].RestartCount != 0 {
			t.Errorf("pod is %s", describe(p))
		}
		n.resizeIs("web", "allocated 100m has 100m/32Mi")
	})
}

// The limits of the pod as a whole change once more while they are being changed.
func TestResizeWholeWhileResizing(t *testing.T) {
	onNode(t, func(n *testNode) {
		whole := func(cpu string) *corev1.Pod {
			return podtest.New("web", func(p *corev1.Pod) {
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}, Limits: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
			})
		}
		n.apply(whole("500m"))
		var times atomic.Int32
		n.cgroups.refuse = func() error {
			times.Add(1)
			time.Sleep(time.Second)
			return nil
		}
		for _, cpu := range []string{"700m", "300m"} {
			n.apply(whole(cpu))
			n.pass(100 * time.Millisecond)
		}
		n.pass(10 * time.Second)
		p := n.pod("web")
		if got := p.Status.Resources.Limits.Cpu().String(); got != "300m" || times.Load() != 2 {
			t.Errorf("the pod is said to have %s after %d resizes, want 300m after 2", got, times.Load())
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodResizeInProgress {
				t.Errorf("condition %v", c)
			}
		}
	})
}
