package kube

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-node/berth/cgroups"
)

// list makes a resource list of pairs: "cpu", "100m", "memory", "1Gi".
func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func container(name string, requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func sidecar(name string, requests, limits corev1.ResourceList) corev1.Container {
	c := container(name, requests, limits)
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func podOf(cs ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: cs}}
}

type podCase struct {
	name   string
	pod    *corev1.Pod
	class  corev1.PodQOSClass
	shares uint64
	quota  int64 // 0: none
	memory int64 // 0: none
	oom    []int // of the containers, with 4 GiB in the node
}

func podCases() []podCase {
	both := list("cpu", "500m", "memory", "1Gi")
	withInit := podOf(container("a", list("cpu", "100m", "memory", "64Mi"), list("cpu", "200m", "memory", "128Mi")))
	withInit.Spec.InitContainers = []corev1.Container{container("i", list("cpu", "1"), list("cpu", "2", "memory", "256Mi"))}
	unlimitedInit := withInit.DeepCopy()
	unlimitedInit.Spec.InitContainers[0].Resources.Limits = nil
	withSidecar := podOf(container("a", both, both))
	withSidecar.Spec.InitContainers = []corev1.Container{sidecar("s", both, both), container("i", both, both)}
	overhead := podOf(container("a", both, both))
	overhead.Spec.Overhead = list("cpu", "250m", "memory", "128Mi")
	podLevel := podOf(container("a", nil, nil), container("b", list("memory", "512Mi"), nil))
	podLevel.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "1", "memory", "1Gi"), Limits: list("cpu", "2", "memory", "2Gi")}
	podGuaranteed := podOf(container("a", nil, nil))
	podGuaranteed.Spec.Resources = &corev1.ResourceRequirements{Requests: both, Limits: both}
	critical := podOf(container("a", nil, nil))
	critical.Spec.PriorityClassName = "system-node-critical"
	return []podCase{
		{"nothing", podOf(container("a", nil, nil)), corev1.PodQOSBestEffort, 2, 0, 0, []int{1000}},
		{"zero request", podOf(container("a", list("cpu", "0"), nil)), corev1.PodQOSBestEffort, 2, 0, 0, []int{1000}},
		{"guaranteed", podOf(container("a", both, both)), corev1.PodQOSGuaranteed, 512, 50_000, 1 << 30, []int{-997}},
		{"limits only", podOf(container("a", nil, both)), corev1.PodQOSGuaranteed, 512, 50_000, 1 << 30, []int{-997}},
		{"two guaranteed", podOf(container("a", both, both), container("b", both, both)), corev1.PodQOSGuaranteed, 1024, 100_000, 2 << 30, []int{-997, -997}},
		{"request only", podOf(container("a", list("memory", "1Gi"), nil)), corev1.PodQOSBurstable, 2, 0, 0, []int{750}},
		{"one unlimited", podOf(container("a", both, both), container("b", nil, nil)), corev1.PodQOSBurstable, 512, 0, 0, []int{750, 999}},
		{"cpu limited only", podOf(container("a", list("cpu", "100m"), list("cpu", "100m"))), corev1.PodQOSBurstable, 102, 10_000, 0, []int{999}},
		{"tiny limit", podOf(container("a", list("cpu", "1m"), list("cpu", "1m", "memory", "8Mi"))), corev1.PodQOSGuaranteed, 2, 1_000, 8 << 20, []int{-997}},
		{"more than the node", podOf(container("a", list("memory", "64Gi"), nil)), corev1.PodQOSBurstable, 2, 0, 0, []int{3}},
		{"init container asks for more", withInit, corev1.PodQOSBurstable, 1024, 200_000, 256 << 20, []int{985}},
		{"init container has no limit", unlimitedInit, corev1.PodQOSBurstable, 1024, 0, 0, []int{985}},
		{"sidecar adds up", withSidecar, corev1.PodQOSGuaranteed, 1024, 100_000, 2 << 30, []int{-997}},
		{"overhead", overhead, corev1.PodQOSGuaranteed, 768, 75_000, 1<<30 + 128<<20, []int{-997}},
		{"pod level", podLevel, corev1.PodQOSBurstable, 1024, 200_000, 2 << 30, []int{938, 813}},
		{"pod level guaranteed", podGuaranteed, corev1.PodQOSGuaranteed, 512, 50_000, 1 << 30, []int{-997}},
		{"node critical", critical, corev1.PodQOSBestEffort, 2, 0, 0, []int{-997}},
	}
}

func TestPodResources(t *testing.T) {
	for _, c := range podCases() {
		t.Run(c.name, func(t *testing.T) {
			if got := QoS(c.pod); got != c.class {
				t.Errorf("class = %s, want %s", got, c.class)
			}
			r := PodResources(c.pod, Options{})
			if got := *r.CPU.Shares; got != c.shares {
				t.Errorf("shares = %d, want %d", got, c.shares)
			}
			if got := quotaOf(r); got != c.quota {
				t.Errorf("quota = %d, want %d", got, c.quota)
			}
			if got := limitOf(r); got != c.memory {
				t.Errorf("memory = %d, want %d", got, c.memory)
			}
			for i := range c.pod.Spec.Containers {
				if got := OOMScoreAdj(c.pod, &c.pod.Spec.Containers[i], 4<<30); got != c.oom[i] {
					t.Errorf("oom_score_adj of %d = %d, want %d", i, got, c.oom[i])
				}
			}
		})
	}
}

func quotaOf(r *specs.LinuxResources) int64 {
	if r.CPU.Quota == nil {
		return 0
	}
	return *r.CPU.Quota
}

func limitOf(r *specs.LinuxResources) int64 {
	if r.Memory == nil {
		return 0
	}
	return *r.Memory.Limit
}

func TestContainerResources(t *testing.T) {
	c := container("a", list("cpu", "100m"), list("cpu", "250m", "memory", "64Mi", "hugepages-2Mi", "4Mi"))
	r := ContainerResources(podOf(c), &c, Options{PageSizes: []string{"2MB", "1GB"}})
	if *r.CPU.Shares != 102 || quotaOf(r) != 25_000 || limitOf(r) != 64<<20 {
		t.Errorf("got %+v %+v", r.CPU, r.Memory)
	}
	want := []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}, {Pagesize: "1GB"}}
	if len(r.HugepageLimits) != 2 || r.HugepageLimits[0] != want[0] || r.HugepageLimits[1] != want[1] {
		t.Errorf("hugepages = %v", r.HugepageLimits)
	}
	r = ContainerResources(podOf(c), &c, Options{NoCPUQuota: true})
	if r.CPU.Quota != nil {
		t.Error("quota although it is switched off")
	}
	c = container("a", nil, list("cpu", "250m"))
	if r = ContainerResources(podOf(c), &c, Options{}); *r.CPU.Shares != 256 {
		t.Errorf("a limit alone is a request too, shares = %d", *r.CPU.Shares)
	}
	p := podOf(container("a", nil, nil))
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("cpu", "2", "memory", "1Gi")}
	if r = ContainerResources(p, &p.Spec.Containers[0], Options{}); quotaOf(r) != 200_000 || limitOf(r) != 1<<30 || *r.CPU.Shares != 2048 {
		t.Errorf("limits of the pod, the share of which is that of a container that asks for nothing: %+v %+v", r.CPU, r.Memory)
	}
	for _, s := range ContainerSettings(cgroups.Legacy, p, &p.Spec.Containers[0], Options{}) {
		if s.File == "cpu.shares" && (s.Want != "2048" || s.Field != "limits.cpu=2 (pod) (no request)" || s.Computed != "2000 * 1024 / 1000 = 2048 shares") {
			t.Errorf("origin of the share: %+v", s)
		}
	}
	p.Spec.Containers[0].Resources.Requests = list("cpu", "0")
	if r = ContainerResources(p, &p.Spec.Containers[0], Options{}); *r.CPU.Shares != 2 {
		t.Errorf("a request for nothing in words: %d shares", *r.CPU.Shares)
	}
}

// A sidecar is as safe from the OOM killer as the container it serves that asks for least, or safer if it asks for more
// itself: kubelet's max(own request, least request of the containers).
func TestSidecarOOM(t *testing.T) {
	p := podOf(container("a", list("memory", "2Gi"), nil), container("b", list("memory", "1Gi"), nil))
	p.Spec.InitContainers = []corev1.Container{sidecar("s", nil, nil), container("i", list("memory", "1Gi"), nil)}
	if got := OOMScoreAdj(p, &p.Spec.InitContainers[0], 4<<30); got != 750 {
		t.Errorf("sidecar that asks for nothing = %d, want 750", got)
	}
	p.Spec.InitContainers[0].Resources.Requests = list("memory", "3Gi")
	if got := OOMScoreAdj(p, &p.Spec.InitContainers[0], 4<<30); got != 250 {
		t.Errorf("sidecar that asks for more than all = %d, want 250", got)
	}
	if got := OOMScoreAdj(p, &p.Spec.InitContainers[1], 4<<30); got != 750 {
		t.Errorf("init container = %d, want 750", got)
	}
	if got := OOMScoreAdj(p, &p.Spec.Containers[1], 0); got != 999 {
		t.Errorf("with unknown node memory = %d, want 999", got)
	}
}

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		root  string
		class corev1.PodQOSClass
		want  string
	}{
		{"/", corev1.PodQOSGuaranteed, "/kubepods/podu-1"},
		{"", corev1.PodQOSBurstable, "/kubepods/burstable/podu-1"},
		{"/node/a/", corev1.PodQOSBestEffort, "/node/a/kubepods/besteffort/podu-1"},
	} {
		if got := PodPath(c.root, "u-1", c.class); got != c.want {
			t.Errorf("PodPath(%q) = %q, want %q", c.root, got, c.want)
		}
	}
	for name, ok := range map[string]bool{"podx": true, "pod": false, "burstable": false, "pod..": false, "podman": true} {
		if _, got := podUID(name); got != ok {
			t.Errorf("podUID(%q) = %t", name, got)
		}
	}
}
