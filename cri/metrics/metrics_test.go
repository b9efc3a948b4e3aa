package metrics

import (
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

func everything() *Container {
	return &Container{
		Labels: Labels{Container: "c", ID: "id", Image: "img", Namespace: "ns", Pod: "p"},
		Seen:   time.Unix(200, 0), Started: time.Unix(100, 0),
		Usage: cgroups.Usage{
			Time: time.Unix(200, 5), CPU: cgroups.CPU{UsageNs: 2_900_000_000}, Memory: cgroups.Memory{WorkingSet: 7, Limit: cgroups.NoLimit, PageFaults: 3, OOMKills: 1},
			Pids: cgroups.Pids{Current: 4, Limit: cgroups.NoLimit}, PSI: &cgroups.PSI{CPU: cgroups.Pressure{Some: cgroups.Stall{TotalUs: 5_000_000}}},
		},
		Detail: cgroups.Detail{
			CPUShares: 2, SwapLimit: cgroups.NoLimit, Hugepages: []cgroups.Hugepages{{Size: "2MB", Usage: 1}, {Size: "1GB"}},
			Devices: []cgroups.DeviceIO{{Major: 8, Minor: 1, IO: cgroups.IO{ReadBytes: 9}}, {Major: 7}},
		},
		Processes:  Processes{Count: 2, Files: 6, Sockets: 1, OpenFilesLimit: 1024},
		Filesystem: Filesystem{Known: true, Device: "/dev/x", Used: 11, Size: 22, Inodes: 33, FreeInodes: 44},
		Name: func(major, _ uint32) string {
			if major == 8 {
				return "/dev/sda1"
			}
			return ""
		},
	}
}

// TestAgreement: each metric is described, with as many label keys as it has values, and each description has a metric.
func TestAgreement(t *testing.T) {
	m := Machine{Hugepages: true, Pressure: true}
	described := map[string]*runtimeapi.MetricDescriptor{}
	for _, d := range Descriptors(m) {
		if described[d.Name] != nil || d.Help == "" || !slices.Equal(d.LabelKeys[:len(baseKeys)], baseKeys) {
			t.Errorf("descriptor %v", d)
		}
		described[d.Name] = d
	}
	seen := map[string]bool{}
	for _, got := range slices.Concat(OfContainer(everything()), OfPod(Labels{ID: "sb"}, []Interface{{Name: "eth0"}, {Name: "eth1"}}, time.Unix(1, 0))) {
		if d := described[got.Name]; d == nil || len(d.LabelKeys) != len(got.LabelValues) {
			t.Errorf("%v is described as %v", got, d)
		}
		key := got.Name + "\x00"
		for _, v := range got.LabelValues {
			key += v + "\x00"
		}
		if seen[key] {
			t.Errorf("%v is there twice", got)
		}
		seen[key], seen[got.Name] = true, true
	}
	for name := range described {
		if !seen[name] {
			t.Errorf("%s has no metric", name)
		}
	}
	for _, d := range Descriptors(Machine{}) {
		if d.Name == "container_hugetlb_usage_bytes" || d.Name == "container_pressure_io_waiting_seconds_total" {
			t.Errorf("%s is described where there is none", d.Name)
		}
	}
}

func TestValues(t *testing.T) {
	find := func(name string, labels ...string) uint64 {
		for _, m := range OfContainer(everything()) {
			if m.Name == name && slices.Equal(m.LabelValues, slices.Concat([]string{"c", "id", "img", "ns", "p"}, labels)) {
				return m.Value.Value
			}
		}
		t.Errorf("no %s %q", name, labels)
		return 0
	}
	for _, tt := range []struct {
		name   string
		labels []string
		want   uint64
	}{
		{"container_cpu_usage_seconds_total", []string{"total"}, 2},
		{"container_memory_working_set_bytes", nil, 7},
		{"container_memory_failures_total", []string{"pgfault", "hierarchy"}, 3},
		{"container_oom_events_total", nil, 1},
		{"container_spec_memory_limit_bytes", nil, 0},
		{"container_threads", nil, 4},
		{"container_threads_max", nil, 0},
		{"container_hugetlb_usage_bytes", []string{"2MB"}, 1},
		{"container_blkio_device_usage_total", []string{"/dev/sda1", "8", "1", "Read"}, 9},
		{"container_fs_reads_bytes_total", []string{"7:0"}, 0},
		{"container_fs_usage_bytes", []string{"/dev/x"}, 11},
		{"container_ulimits_soft", []string{"max_open_files"}, 1024},
		{"container_start_time_seconds", nil, 100},
		{"container_last_seen", nil, 200},
		{"container_pressure_cpu_waiting_seconds_total", nil, 5},
		{"container_sockets", nil, 1},
	} {
		if got := find(tt.name, tt.labels...); got != tt.want {
			t.Errorf("%s %q: got %d, want %d", tt.name, tt.labels, got, tt.want)
		}
	}
}

// TestNothingKnown: a container whose group tells nothing has no metrics that are made up.
func TestNothingKnown(t *testing.T) {
	for _, m := range OfContainer(&Container{}) {
		if m.Value.Value != 0 {
			t.Errorf("%v", m)
		}
	}
}
