package usage

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/metrics"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Value is a number as messages of the CRI hold it.
func Value(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

// CPU is what a group uses of the CPUs.
func CPU(u cgroups.Usage, rate *Rate) *runtimeapi.CpuUsage {
	out := &runtimeapi.CpuUsage{Timestamp: u.Time.UnixNano(), UsageCoreNanoSeconds: Value(u.CPU.UsageNs), UsageNanoCores: rate.see(u)}
	if u.PSI != nil {
		out.Psi = psi(u.PSI.CPU)
	}
	return out
}

// Memory is what a group uses of the memory.
func Memory(u cgroups.Usage) *runtimeapi.MemoryUsage {
	m := u.Memory
	out := &runtimeapi.MemoryUsage{
		Timestamp: u.Time.UnixNano(), WorkingSetBytes: Value(m.WorkingSet), UsageBytes: Value(m.Usage), RssBytes: Value(m.RSS),
		PageFaults: Value(m.PageFaults), MajorPageFaults: Value(m.MajorFaults),
	}
	// Nothing is said about what is available where there is no limit.
	out.AvailableBytes = Value(0)
	if m.Limit != cgroups.NoLimit && m.Limit > m.WorkingSet {
		out.AvailableBytes = Value(m.Limit - m.WorkingSet)
	}
	if u.PSI != nil {
		out.Psi = psi(u.PSI.Memory)
	}
	return out
}

// IO is how long a group waited for its input and output.
func IO(u cgroups.Usage) *runtimeapi.IoUsage {
	out := &runtimeapi.IoUsage{Timestamp: u.Time.UnixNano()}
	if u.PSI != nil {
		out.Psi = psi(u.PSI.IO)
	}
	return out
}

func psi(p cgroups.Pressure) *runtimeapi.PsiStats {
	return &runtimeapi.PsiStats{Some: psiData(p.Some), Full: psiData(p.Full)}
}

func psiData(s cgroups.Stall) *runtimeapi.PsiData {
	return &runtimeapi.PsiData{Total: s.TotalUs * 1000, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
}

// Add adds what another group uses.
func Add(u *cgroups.Usage, of cgroups.Usage) {
	u.CPU.UsageNs += of.CPU.UsageNs
	u.Memory.Usage += of.Memory.Usage
	u.Memory.WorkingSet += of.Memory.WorkingSet
	u.Memory.RSS += of.Memory.RSS
	u.Memory.PageFaults += of.Memory.PageFaults
	u.Memory.MajorFaults += of.Memory.MajorFaults
	u.Pids.Current += of.Pids.Current
}

// Network is the use of the pod's interfaces, nil for a pod in the host's network.
func Network(keeperPid int, netns string) *runtimeapi.NetworkUsage {
	all := Interfaces(keeperPid, netns)
	if all == nil {
		return nil
	}
	out := &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range all {
		u := &runtimeapi.NetworkInterfaceUsage{
			Name: i.Name, RxBytes: Value(i.RxBytes), RxErrors: Value(i.RxErrors), TxBytes: Value(i.TxBytes), TxErrors: Value(i.TxErrors),
		}
		if i.Name == "eth0" {
			out.DefaultInterface = u
		} else {
			out.Interfaces = append(out.Interfaces, u)
		}
	}
	return out
}

// Interfaces reads the counters of the pod's interfaces, but for the loopback, through its keeper, which is in the
// pod's network: that needs no thread to enter it.
func Interfaces(keeperPid int, netns string) []metrics.Interface {
	if netns == "" || keeperPid == 0 {
		return nil
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(keeperPid) + "/net/dev")
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(parseNetDev(string(b)), func(i metrics.Interface) bool { return i.Name == "lo" })
}

// parseNetDev reads /proc/net/dev: "name: rx bytes, packets, errors, dropped, and four more, tx bytes, packets, ...".
func parseNetDev(s string) []metrics.Interface {
	out := []metrics.Interface{}
	for line := range strings.Lines(s) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 12 {
			continue
		}
		n := func(i int) uint64 {
			v, _ := strconv.ParseUint(f[i], 10, 64)
			return v
		}
		out = append(out, metrics.Interface{
			Name: strings.TrimSpace(name), RxBytes: n(0), RxPackets: n(1), RxErrors: n(2), RxDropped: n(3),
			TxBytes: n(8), TxPackets: n(9), TxErrors: n(10), TxDropped: n(11),
		})
	}
	return out
}

// Swap says what is left where memory and swap are limited together.
func Swap(u cgroups.Usage, r *runtimeapi.LinuxContainerResources) *runtimeapi.SwapUsage {
	out := &runtimeapi.SwapUsage{Timestamp: u.Time.UnixNano(), SwapUsageBytes: Value(u.Memory.Swap)}
	mem, both := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	if both == 0 {
		both = mem // none unless it is asked for
	}
	if mem > 0 && both >= mem {
		left := uint64(both - mem)
		out.SwapAvailableBytes = Value(left - min(left, u.Memory.Swap))
	}
	return out
}
