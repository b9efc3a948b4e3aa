package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestChosenSettings(t *testing.T) {
	const gi = 1 << 30
	o := Options{
		Unified: true, MemoryQoS: true, NodeMemory: 10 * gi, HostMemory: 16 * gi, NodeSwap: 8 * gi, Swap: LimitedSwap, OOMGroup: OOMContainer, PeriodUs: 50_000,
	}
	annotated := func(p *corev1.Pod, pairs ...string) *corev1.Pod {
		p.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
		return p
	}
	for _, tt := range []struct {
		name           string
		pod            *corev1.Pod
		container, own map[string]string
		burst          uint64
	}{
		{
			name:      "burstable",
			pod:       podOf(container("a", list("memory", "1Gi"), list("memory", "2Gi"))),
			container: map[string]string{"memory.min": "1073741824", "memory.high": "2040107008", "memory.swap.max": "536870912", "memory.oom.group": "1"},
			own:       map[string]string{"memory.min": "1073741824"},
		},
		{
			name:      "burstable without a limit",
			pod:       podOf(container("a", list("memory", "1Gi"), nil)),
			container: map[string]string{"memory.min": "1073741824", "memory.high": "9771048960", "memory.swap.max": "536870912", "memory.oom.group": "1"},
			own:       map[string]string{"memory.min": "1073741824"},
		},
		{
			name:      "guaranteed",
			pod:       podOf(container("a", list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))),
			container: map[string]string{"memory.min": "1073741824", "memory.swap.max": "0", "memory.oom.group": "1"},
			own:       map[string]string{"memory.min": "1073741824"},
		},
		{
			name:      "besteffort, its own way",
			pod:       annotated(podOf(container("a", nil, nil)), OOMGroupAnnotation, "pod", IOWeightAnnotation, "500"),
			container: map[string]string{"memory.high": "9663676416", "memory.swap.max": "0"},
			own:       map[string]string{"memory.oom.group": "1", "io.weight": "500"},
		},
		{
			name:      "burst, at most the quota",
			pod:       annotated(podOf(container("a", nil, list("cpu", "500m"))), CPUBurstAnnotation, "1s", OOMGroupAnnotation, "none"),
			container: map[string]string{"memory.high": "9663676416", "memory.swap.max": "0"},
			burst:     25_000,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := ContainerResources(tt.pod, &tt.pod.Spec.Containers[0], o)
			p := PodResources(tt.pod, o)
			same(t, "container", c.Unified, tt.container)
			same(t, "pod", p.Unified, tt.own)
			if tt.burst != 0 && (c.CPU.Burst == nil || *c.CPU.Burst != tt.burst || p.CPU.Burst == nil || *p.CPU.Burst != tt.burst) {
				t.Errorf("burst %v and %v, want %d", c.CPU.Burst, p.CPU.Burst, tt.burst)
			}
			if tt.burst == 0 && (c.CPU.Burst != nil || p.CPU.Burst != nil) {
				t.Error("a burst nobody asked for")
			}
			if err := CheckAnnotations(tt.pod.Annotations); err != nil {
				t.Error(err)
			}
		})
	}
	o.Unified = false
	p := annotated(podOf(container("a", nil, list("memory", "1Gi"))), IOWeightAnnotation, "10000", OOMGroupAnnotation, "pod")
	own, c := PodResources(p, o), ContainerResources(p, &p.Spec.Containers[0], o)
	if len(own.Unified) != 0 || len(c.Unified) != 0 || *own.BlockIO.Weight != 1000 || *c.Memory.Swap != gi {
		t.Errorf("v1: %+v %+v", own, c)
	}
	for _, bad := range []string{OOMGroupAnnotation, CPUBurstAnnotation, IOWeightAnnotation} {
		if CheckAnnotations(map[string]string{bad: "much"}) == nil {
			t.Errorf("%s may be anything", bad)
		}
	}
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s %s = %q, want %q", what, k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok {
			t.Errorf("%s has %s = %q too", what, k, v)
		}
	}
}
