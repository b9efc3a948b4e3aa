package cri

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestMetrics: whatever is described is measured, with labels that agree, and the numbers are the kernel's.
func TestMetrics(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(c *runtimeapi.ContainerConfig) {
		r := c.Linux.Resources
		r.CpuPeriod, r.CpuQuota, r.CpuShares, r.MemoryLimitInBytes = 100000, 50000, 1024, 64<<20
	}, "sh", "-c", "(nc -l -p 80 &) ; exec sleep 1000")
	// By its port: the shell that is to start it has its name among its arguments.
	eventually(t, func() bool { return strings.Contains(n.sh(t, id, "cat /proc/net/tcp /proc/net/tcp6"), ":0050 ") })
	n.sh(t, id, "dd if=/dev/zero of=/data/x bs=4096 count=100 2>/dev/null; mkdir /data/d")
	descs, err := n.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.ListPodSandboxMetrics(t.Context(), &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil || len(l.PodMetrics) != 1 || l.PodMetrics[0].PodSandboxId != pod || len(l.PodMetrics[0].ContainerMetrics) != 1 || l.PodMetrics[0].ContainerMetrics[0].ContainerId != id {
		t.Fatalf("got %v, %v", l, err)
	}
	got := map[string]uint64{}
	for _, m := range slices.Concat(l.PodMetrics[0].Metrics, l.PodMetrics[0].ContainerMetrics[0].Metrics) {
		i := slices.IndexFunc(descs.Descriptors, func(d *runtimeapi.MetricDescriptor) bool { return d.Name == m.Name })
		if i < 0 || len(descs.Descriptors[i].LabelKeys) != len(m.LabelValues) {
			t.Errorf("%v is not described", m)
		}
		got[m.Name] = max(got[m.Name], m.Value.Value)
	}
	for _, d := range descs.Descriptors {
		// What went to devices is known once something did.
		if _, ok := got[d.Name]; !ok && !slices.Contains(d.LabelKeys, "device") {
			t.Errorf("%s is described and not measured", d.Name)
		}
	}
	for name, want := range map[string]uint64{
		"container_spec_cpu_quota": 50000, "container_spec_cpu_period": 100000, "container_spec_memory_limit_bytes": 64 << 20,
	} {
		if got[name] != want {
			t.Errorf("%s: got %d, want %d", name, got[name], want)
		}
	}
	for name, least := range map[string]uint64{
		"container_spec_cpu_shares": 1000, "container_memory_usage_bytes": 4096, "container_fs_usage_bytes": 100 * 4096, "container_fs_limit_bytes": 1 << 20,
		"container_processes": 2, "container_threads": 2, "container_file_descriptors": 6, "container_sockets": 1, "container_ulimits_soft": 1, "container_start_time_seconds": 1e9, "container_last_seen": 1e9, "container_memory_failures_total": 1,
	} {
		if got[name] < least {
			t.Errorf("%s: got %d, want at least %d", name, got[name], least)
		}
	}
	st, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
	if err != nil || st.Stats.Swap.GetSwapAvailableBytes() == nil || st.Stats.WritableLayer.GetUsedBytes().GetValue() < 100*4096 || st.Stats.WritableLayer.GetInodesUsed().GetValue() < 2 {
		t.Errorf("stats: got %v, %v", st, err)
	}
}

// TestStatsFilters: lists of what is used have what is asked for, and nothing of what has ended.
func TestStatsFilters(t *testing.T) {
	n := newNode(t)
	a, _ := n.pod(t, "a", nil)
	b, _ := n.pod(t, "b", nil)
	one := n.run(t, a, "one", nil, "sleep", "1000")
	two := n.run(t, a, "two", nil, "sleep", "1000")
	other := n.run(t, b, "one", nil, "sleep", "1000")
	n.output(t, b, "ended", nil, "true")
	for name, tt := range map[string]struct {
		filter *runtimeapi.ContainerStatsFilter
		want   []string
	}{
		"all":              {nil, []string{one, two, other}},
		"by pod":           {&runtimeapi.ContainerStatsFilter{PodSandboxId: a}, []string{one, two}},
		"by id":            {&runtimeapi.ContainerStatsFilter{Id: two}, []string{two}},
		"by its beginning": {&runtimeapi.ContainerStatsFilter{Id: two[:16]}, []string{two}},
		"by label":         {&runtimeapi.ContainerStatsFilter{LabelSelector: map[string]string{"app": "none"}}, nil},
		"of another pod":   {&runtimeapi.ContainerStatsFilter{Id: two, PodSandboxId: b}, nil},
		"of nobody":        {&runtimeapi.ContainerStatsFilter{Id: "nobody"}, nil},
	} {
		l, err := n.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{Filter: tt.filter})
		var got []string
		for _, s := range l.GetStats() {
			got = append(got, s.GetAttributes().GetId())
		}
		slices.Sort(got)
		slices.Sort(tt.want)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		layers := n.Local().Layers(t.Context())
		for _, s := range l.GetStats() {
			of := layers[s.GetAttributes().GetId()]
			if of == nil || of.GetUsedBytes().GetValue() != s.GetWritableLayer().GetUsedBytes().GetValue() || of.GetFsId().GetMountpoint() != s.GetWritableLayer().GetFsId().GetMountpoint() || len(layers) != 3 {
				t.Errorf("%s: of its layer alone it tells %v, among %d, of all %v", name, of, len(layers), s.GetWritableLayer())
			}
		}
	}
	for name, tt := range map[string]struct {
		filter *runtimeapi.PodSandboxStatsFilter
		want   int
	}{
		"all": {nil, 2}, "by id": {&runtimeapi.PodSandboxStatsFilter{Id: a}, 1}, "by its beginning": {&runtimeapi.PodSandboxStatsFilter{Id: a[:16]}, 1},
		"by label": {&runtimeapi.PodSandboxStatsFilter{LabelSelector: map[string]string{"app": "none"}}, 0}, "of nobody": {&runtimeapi.PodSandboxStatsFilter{Id: "nobody"}, 0},
	} {
		l, err := n.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{Filter: tt.filter})
		if err != nil || len(l.GetStats()) != tt.want {
			t.Errorf("%s: got %v, %v", name, l, err)
		}
	}
	// Pressure is told where the kernel keeps it for a group, and nowhere else.
	_, err := os.Stat(filepath.Join("/sys/fs/cgroup", n.containerRecord(t, one).Cgroup, "cpu.pressure"))
	if err != nil { // on hybrid machines v2 is beside v1
		_, err = os.Stat(filepath.Join("/sys/fs/cgroup/unified", n.containerRecord(t, one).Cgroup, "cpu.pressure"))
	}
	st, serr := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: one})
	if serr != nil || (st.Stats.Cpu.Psi != nil) != (err == nil) || (st.Stats.Memory.Psi != nil) != (err == nil) || (st.Stats.Io != nil) != (err == nil) {
		t.Errorf("pressure (%v): got %v, %v", err, st, serr)
	}
	if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: b}); err != nil {
		t.Fatal(err)
	}
	if l, err := n.ListPodSandboxStats(t.Context(), &runtimeapi.ListPodSandboxStatsRequest{}); err != nil || len(l.Stats) != 1 {
		t.Errorf("after a stop: got %v, %v", l, err)
	}
}

// TestStatsWithoutParent: what a pod uses is what its containers use, where no group of the client's has them together.
func TestStatsWithoutParent(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	for _, name := range []string{"one", "two"} {
		id := n.run(t, pod, name, nil, "sleep", "1000")
		n.sh(t, id, "head -c 20000000 /dev/zero > /dev/shm/"+name)
	}
	r, err := n.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	l := r.GetStats().GetLinux()
	var cpu uint64
	for _, c := range l.GetContainers() {
		cpu += c.GetCpu().GetUsageCoreNanoSeconds().GetValue()
	}
	if got := l.GetMemory().GetUsageBytes().GetValue(); got < 40_000_000 {
		t.Errorf("%d bytes are in use", got)
	}
	if got := l.GetProcess().GetProcessCount().GetValue(); got < 3 {
		t.Errorf("there are %d processes", got)
	}
	if got := l.GetCpu().GetUsageCoreNanoSeconds().GetValue(); cpu == 0 || got <= cpu || l.GetCpu().GetPsi() != nil {
		t.Errorf("the pod took %v, its containers %d", l.GetCpu(), cpu)
	}
}
