package kube

import (
	"errors"
	"maps"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/cgroupstest"
)

// A pod is grown and shrunk in every order of its parts, under a limit that v1 checks at each write.
func TestResize(t *testing.T) {
	h, group := cgroupstest.Group(t, cgroups.Open)
	pod := func(cpuA, memA, cpuB, memB string) *corev1.Pod {
		limits := func(cpu, mem string) corev1.ResourceList {
			l := corev1.ResourceList{}
			if cpu != "" {
				l = list("cpu", cpu)
			}
			if mem != "" {
				maps.Copy(l, list("memory", mem))
			}
			return l
		}
		return podOf(container("a", nil, limits(cpuA, memA)), container("b", nil, limits(cpuB, memB)))
	}
	paths := []string{group + "/a", group + "/b"}
	cgroupstest.Create(t, h, group, PodResources(pod("1", "256Mi", "500m", "64Mi"), Options{}))
	for i := range paths {
		p := pod("1", "256Mi", "500m", "64Mi")
		cgroupstest.Create(t, h, paths[i], ContainerResources(p, &p.Spec.Containers[i], Options{}))
	}
	for _, p := range []*corev1.Pod{
		pod("100m", "128Mi", "50m", "32Mi"),   // all down
		pod("2", "1Gi", "2", "1Gi"),           // all up
		pod("100m", "2Gi", "100m", "2Gi"),     // CPU down, memory up
		pod("4", "64Mi", "100m", "64Mi"),      // CPU up, memory down
		pod("", "64Mi", "100m", ""),           // limits taken away
		pod("200m", "128Mi", "300m", "128Mi"), // and given again
	} {
		targets := []Target{}
		for i := range paths {
			targets = append(targets, Target{paths[i], ContainerResources(p, &p.Spec.Containers[i], Options{})})
		}
		if err := Resize(h, Target{group, PodResources(p, Options{})}, targets, nil); err != nil {
			t.Fatal(err)
		}
		for _, c := range append(targets, Target{group, PodResources(p, Options{})}) {
			if got, want := coresOf(h, c.Path), cores(c.Resources); got != want {
				t.Errorf("%s: %g cores, want %g", c.Path, got, want)
			}
			if got, want := memoryLimitOf(h, c.Path), memoryLimit(c.Resources); got != want {
				t.Errorf("%s: memory %d, want %d", c.Path, got, want)
			}
		}
	}
}

func TestResizeBelowUseIsRefused(t *testing.T) {
	h, group := cgroupstest.Group(t, cgroups.Open)
	cgroupstest.Create(t, h, group, nil)
	cgroupstest.Process(t, h, group, "a=$(head -c 20000000 /dev/zero | tr '\\0' x); echo filled; sleep 1000 & wait")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if u, err := h.Stat(group); err == nil && u.Memory.WorkingSet > 16<<20 {
			break
		}
	}
	p := podOf(container("a", nil, list("memory", strconv.Itoa(8<<20))))
	err := Resize(h, Target{group, PodResources(p, Options{})}, nil, nil)
	if !errors.Is(err, cgroups.ErrInUse) {
		t.Errorf("err = %v", err)
	}
	if memoryLimitOf(h, group) != cgroups.NoLimit {
		t.Error("something was written nevertheless")
	}
}
