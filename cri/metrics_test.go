package cri

import (
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
	eventually(t, func() bool { return strings.Contains(n.sh(t, id, "ps"), "nc -l") })
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
