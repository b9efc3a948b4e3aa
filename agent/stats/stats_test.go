package stats

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    1024      10    0    0    0     0          0         0     1024      10    0    0    0     0       0          0
  eth0: 1536000    1200    3    4    0     0          0         0  9876543    2000    5    6    0     0       0          0
`

func TestParseNetDev(t *testing.T) {
	want := []Interface{{
		Name: "eth0", RxBytes: 1536000, RxPackets: 1200, RxErrors: 3, RxDropped: 4, TxBytes: 9876543, TxPackets: 2000, TxErrors: 5, TxDropped: 6,
	}}
	if got := parseNetDev([]byte(netDev)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(netDev))
	f.Add([]byte("MemTotal:       24630240 kB\nMemAvailable:   20000000 kB\n"))
	f.Add([]byte("Iface\tDestination\tGateway\neth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\n"))
	f.Add([]byte("MAJOR=8\nMINOR=0\nDEVNAME=sda\nDEVTYPE=disk\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		parseNetDev(data)
		parseMeminfo(data)
		defaultInterface(data)
		if name := deviceName(data); name != "" && !strings.HasPrefix(name, "/dev/") {
			t.Errorf("%q is the device %q", data, name)
		}
	})
}

func TestParseNode(t *testing.T) {
	m := parseMeminfo([]byte("MemTotal:       24630240 kB\nMemAvailable:   20000000 kB\nHugePages_Total:       0\n"))
	if m["MemTotal"] != 24630240<<10 || m["MemAvailable"] != 20000000<<10 {
		t.Errorf("meminfo: %v", m)
	}
	route := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n" +
		"berth0\t0000630A\t00000000\t0001\t0\t0\t0\t0000FFFF\neth1\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\n"
	if got := defaultInterface([]byte(route)); got != "eth1" {
		t.Errorf("default interface: %q", got)
	}
	all := nodeInterfaces([]Interface{{Name: "eth1"}, {Name: "bth0123456789ab"}, {Name: "veth1"}, {Name: "berth0"}})
	if len(all) != 2 || all[0].Name != "eth1" || all[1].Name != "berth0" {
		t.Errorf("interfaces: %+v", all)
	}
}

func TestCountOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	d, ok := count(t.Context(), dir)
	if !ok || d.Used < 1<<20 || d.Used > 1<<20+64<<10 || d.InodesUsed != 3 {
		t.Errorf("got %+v, %t", d, ok)
	}
	if _, ok := count(t.Context(), filepath.Join(dir, "none")); ok {
		t.Error("counted what is not there")
	}
}

// What is dear is found out once for all who ask, beside, and not again before it is due.
func TestSlow(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := newAside()
	var s slow[int]
	calls := 0
	find := func(context.Context) int { calls++; return calls }
	for range 3 {
		if got := s.get(a, time.Hour, patient, find); got != 1 {
			t.Errorf("got %d", got)
		}
	}
	s.due = time.Time{}
	if got := s.get(a, time.Hour, patient, find); got != 2 {
		t.Errorf("when due: got %d", got)
	}
	a.end()
}

// TestBudget: many that cannot be counted in a moment keep nobody for long, and hide none of those after them.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAside()
		defer a.end()
		all := make([]slow[int], 120)
		began, waits := time.Now(), newBudget(len(all))
		for i := range all {
			got := all[i].get(a, time.Hour, waits.next(), func(ctx context.Context) int {
				if i < 100 {
					<-ctx.Done()
				}
				time.Sleep(time.Millisecond)
				return i
			})
			if i >= 100 && got != i {
				t.Errorf("%d is not known", i)
			}
		}
		if took := time.Since(began); took > allPatient {
			t.Errorf("waited for %v", took)
		}
	})
}

func TestFiguresOfTheRuntime(t *testing.T) {
	value := func(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }
	p := &Pod{
		Pod:        &corev1.Pod{},
		Containers: []Container{{ID: "one"}, {ID: "two", Figures: Figures{Known: true, Rate: 7}}},
	}
	fillPod(p, &runtimeapi.LinuxPodSandboxStats{
		Cpu:     &runtimeapi.CpuUsage{Timestamp: 5, UsageCoreNanoSeconds: value(11), UsageNanoCores: value(12)},
		Memory:  &runtimeapi.MemoryUsage{WorkingSetBytes: value(13)},
		Network: &runtimeapi.NetworkUsage{DefaultInterface: &runtimeapi.NetworkInterfaceUsage{Name: "eth0", RxBytes: value(14)}},
		Containers: []*runtimeapi.ContainerStats{
			{Attributes: &runtimeapi.ContainerAttributes{Id: "one"}, Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: value(15), AvailableBytes: value(16)}},
			{Attributes: &runtimeapi.ContainerAttributes{Id: "two"}, Cpu: &runtimeapi.CpuUsage{UsageNanoCores: value(17)}},
		},
	})
	one := p.Containers[0].Usage.Memory
	switch {
	case p.Usage.CPU.UsageNs != 11 || p.Rate != 12 || p.Usage.Memory.WorkingSet != 13 || p.Usage.Memory.Limit != cgroups.NoLimit:
		t.Errorf("pod: %+v", p.Figures)
	case len(p.Network) != 1 || p.Network[0].RxBytes != 14:
		t.Errorf("network: %+v", p.Network)
	case one.WorkingSet != 15 || one.Available != 16 || one.Limit != 31:
		t.Errorf("container: %+v", one)
	case p.Containers[1].Rate != 7:
		t.Error("what was read was overwritten")
	}
}
