package config

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func quantities(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func TestDivide(t *testing.T) {
	r := defaultResources()
	r.SystemReserved = map[string]string{"cpu": "500m", "memory": "1Gi", "pid": "100"}
	r.KubeReserved = map[string]string{"cpu": "250m", "memory": "512Mi"}
	r.Evict.Hard = "memory.available<10%,nodefs.available<5%"
	r.MaxPods = 7
	capacity := quantities("cpu", "4", "memory", "10Gi", "pid", "1000", "hugepages-2Mi", "4Mi", "ephemeral-storage", "100Gi")
	d, err := r.Divide(capacity, "")
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, l corev1.ResourceList, want ...string) {
		t.Helper()
		for name, q := range quantities(want...) {
			if got := l[name]; got.Cmp(q) != 0 {
				t.Errorf("%s %s is %s, want %s", what, name, got.String(), q.String())
			}
		}
	}
	check("enforced", d.Enforced, "cpu", "3250m", "memory", "8704Mi", "pid", "900", "hugepages-2Mi", "4Mi", "ephemeral-storage", "100Gi")
	check("allocatable", d.Allocatable, "cpu", "3250m", "memory", "7676Mi", "pods", "7", "ephemeral-storage", "95Gi")
	if d, err = r.Divide(capacity, "0,2-3"); err != nil {
		t.Fatal(err)
	}
	check("with reserved CPUs", d.Allocatable, "cpu", "1")
	r.SystemReserved["memory"] = "10Gi"
	if _, err := r.Divide(capacity, ""); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("more reserved than there is: %v", err)
	}
}

func TestResourcesAreChecked(t *testing.T) {
	if r := defaultResources(); r.Complete() != nil {
		t.Errorf("defaults: %v", r.Complete())
	}
	for want, change := range map[string]func(*Resources){
		"--system-reserved: ":        func(r *Resources) { r.SystemReserved = map[string]string{"cpu": "x"} },
		"gpu is not a resource":      func(r *Resources) { r.KubeReserved = map[string]string{"gpu": "1"} },
		"can have < only":            func(r *Resources) { r.Evict.Hard = "memory.available=5" },
		"is not from 0% to 100%":     func(r *Resources) { r.Evict.Hard = "memory.available<120%" },
		"--system-reserved-cgroup":   func(r *Resources) { r.EnforceAllocatable = []string{"system-reserved"} },
		"pods, system-reserved":      func(r *Resources) { r.EnforceAllocatable = []string{"all"} },
		"--cpu-cfs-quota-period":     func(r *Resources) { r.CPUQuotaPeriod = 2 },
		"--memory-throttling-factor": func(r *Resources) { r.ThrottlingFactor = 1.5 },
		"--qos-reserved":             func(r *Resources) { r.QoSReserved = map[string]string{"memory": "50"} },
		"--swap-behavior":            func(r *Resources) { r.Swap = "All" },
		"--cgroup-drift":             func(r *Resources) { r.CgroupDrift = "on" },
		"--eviction-soft memory.available<1Gi: has no grace period": func(r *Resources) { r.Evict.Soft = "memory.available<1Gi" },
		"--memory-available":            func(r *Resources) { r.Evict.MemoryAvailable = "guess" },
		"--oom-policy":                  func(r *Resources) { r.Evict.OOMPolicy = "late" },
		"cpu=1e-999999999 is not":       func(r *Resources) { r.SystemReserved = map[string]string{"cpu": "1e-999999999"} },
		"memory=1e999999999 is not":     func(r *Resources) { r.KubeReserved = map[string]string{"memory": "1e999999999"} },
		`"1e-999999999" is no quantity`: func(r *Resources) { r.Evict.Hard = "memory.available<1e-999999999" },
		"--oom-group":                   func(r *Resources) { r.OOMGroup = "node" },
		"--max-pods must be at least 1": func(r *Resources) { r.MaxPods = 0 },
	} {
		r := defaultResources()
		change(&r)
		if err := r.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestReservedMemoryIsWhatTheNodeKeeps(t *testing.T) {
	r := defaultResources()
	r.SystemReserved = map[string]string{"memory": "1Gi", "hugepages-2Mi": "2Mi"}
	r.KubeReserved = map[string]string{"memory": "512Mi"}
	d, err := r.Divide(quantities("memory", "10Gi", "hugepages-2Mi", "4Mi"), "")
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"0:memory=1Gi,hugepages-2Mi=2Mi;1:memory=612Mi": "",
		"0:memory=1636Mi": "the total of hugepages-2Mi is 0, but the node keeps 2Mi " +
			"(--system-reserved 2Mi + --kube-reserved 0)",
		"0:memory=1Gi,hugepages-2Mi=2Mi": "the total of memory is 1Gi, but the node keeps 1636Mi " +
			"(--system-reserved 1Gi + --kube-reserved 512Mi + --eviction-hard 100Mi)",
		"0:memory=1636Mi,hugepages-2Mi=2Mi,hugepages-1Gi=1Gi": "the total of hugepages-1Gi is 1Gi, but the node keeps 0",
	} {
		reserved, err := parseReservedMemory([]string{flag})
		if err != nil {
			t.Fatal(err)
		}
		switch err := d.CheckReservedMemory(reserved); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", flag, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %s", flag, err, want)
		}
	}
}

// The thresholds for all pods together are there when these are limited, as in kubelet, and with kubelet's defaults.
func TestEvictionPolicy(t *testing.T) {
	for _, c := range []struct {
		enforce []string
		merge   bool
		hard    string
		want    int
	}{
		{[]string{EnforcePods}, false, defaultEviction().Hard, 6},
		{nil, false, defaultEviction().Hard, 5},
		{nil, false, "", 0},
		{nil, false, "pid.available<10", 1},
		{nil, true, "pid.available<10", 6},
	} {
		r := defaultResources()
		r.EnforceAllocatable, r.Evict.Hard, r.Evict.MergeDefaults = c.enforce, c.hard, c.merge
		p, err := r.EvictionPolicy()
		if err != nil || len(p.Thresholds) != c.want {
			t.Errorf("%+v: %v, %v", c, p.Thresholds, err)
		}
	}
}
