package systemd

import (
	"fmt"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups"
)

func TestSlicePath(t *testing.T) {
	for _, tt := range []struct {
		root  string
		names []string
		want  string
	}{
		{"/", []string{"kubepods"}, "/kubepods.slice"},
		{"/", []string{"kubepods", "burstable", "pod1-2"}, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"},
		{"/a-b/c", []string{"kubepods"}, "/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice"},
		{"/a.slice/a-b.slice", []string{"kubepods"}, "/a.slice/a-b.slice/a-b-kubepods.slice"},
		{"/-.slice", nil, "/"},
	} {
		if got := SlicePath(tt.root, tt.names...); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.root, tt.names, got, tt.want)
		}
	}
}

func TestUnitProperties(t *testing.T) {
	shares, quota, period, memory, pids := uint64(512), int64(12_345), uint64(50_000), int64(64<<20), int64(-1)
	r := &specs.LinuxResources{
		CPU: &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period, Cpus: "0-1,9"}, Memory: &specs.LinuxMemory{Limit: &memory},
		Pids: &specs.LinuxPids{Limit: &pids}, Unified: map[string]string{"memory.high": "max", "io.weight": "default 50", "memory.oom.group": "1"},
	}
	got := map[string]string{}
	for _, p := range unitProperties(cgroups.Unified, r) {
		got[p.Name] = fmt.Sprint(p.Value.Value())
	}
	for name, want := range map[string]string{
		"CPUWeight": "50", "CPUQuotaPeriodUSec": "50000", "CPUQuotaPerSecUSec": "250000", "MemoryMax": "67108864", "AllowedCPUs": "[3 2]",
		"TasksMax": fmt.Sprint(Infinity), "MemoryHigh": fmt.Sprint(Infinity), "IOWeight": "50",
	} {
		if got[name] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) != 0 {
		t.Errorf("also %v", got)
	}
}
