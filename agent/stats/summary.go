package stats

import (
	"context"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-node/berth/cgroups"
)

// Summary is kubelet's summary, and what the kernel says beside it.
type Summary struct {
	Node NodeStats           `json:"node"`
	Pods []statsapi.PodStats `json:"pods"`
}

// NodeStats is kubelet's, with one figure more.
type NodeStats struct {
	statsapi.NodeStats

	// KernelAvailableBytes is the kernel's own estimate of what could be used without swapping. Memory.AvailableBytes
	// is kubelet's: capacity less working set.
	KernelAvailableBytes *uint64 `json:"kernelAvailableBytes,omitempty"`
}

// Summary measures and tells of CPU and memory, and if not only of them of everything else.
func (c *Collector) Summary(ctx context.Context, onlyCPUAndMemory bool) (*Summary, error) {
	s, err := c.Snapshot(ctx, true)
	if err != nil {
		return nil, err
	}
	out := &Summary{Pods: []statsapi.PodStats{}}
	n := &s.Node
	out.Node.NodeName, out.Node.StartTime = c.cfg.NodeName, metav1.NewTime(n.Started)
	out.Node.CPU, out.Node.Memory, out.Node.Swap = cpuStats(n.Figures), memoryStats(n.Figures), swapStats(n.Usage.Time, n.SwapUsed, n.SwapTotal-n.SwapUsed)
	out.Node.KernelAvailableBytes = &n.Available
	out.Node.SystemContainers = systemContainers(s)
	for i := range s.Pods {
		out.Pods = append(out.Pods, podSummary(&s.Pods[i]))
	}
	if !onlyCPUAndMemory {
		c.summarizeRest(s, out)
	}
	slices.SortFunc(out.Pods, func(a, b statsapi.PodStats) int {
		return strings.Compare(a.PodRef.Namespace+"/"+a.PodRef.Name, b.PodRef.Namespace+"/"+b.PodRef.Name)
	})
	return out, nil
}

func podSummary(p *Pod) statsapi.PodStats {
	out := statsapi.PodStats{
		PodRef:     statsapi.PodReference{Name: p.Pod.Name, Namespace: p.Pod.Namespace, UID: string(p.Pod.UID)},
		Containers: []statsapi.ContainerStats{},
	}
	if t := p.Pod.Status.StartTime; t != nil {
		out.StartTime = *t
	}
	if p.Known {
		out.CPU, out.Memory, out.Swap = cpuStats(p.Figures), memoryStats(p.Figures), swapOf(p.Figures)
	}
	for i := range p.Containers {
		r := &p.Containers[i]
		one := statsapi.ContainerStats{Name: r.Name, StartTime: metav1.NewTime(r.Started)}
		if r.Known {
			one.CPU, one.Memory, one.Swap = cpuStats(r.Figures), memoryStats(r.Figures), swapOf(r.Figures)
		}
		out.Containers = append(out.Containers, one)
	}
	return out
}

// summarizeRest fills in io, network, processes and disks. Pods are in the order of the snapshot still.
func (c *Collector) summarizeRest(s *Snapshot, out *Summary) {
	l := c.disks()
	n := &s.Node
	out.Node.IO = ioStats(n.Figures)
	out.Node.Network = networkStats(n.Usage.Time, n.Network, n.Default)
	out.Node.Fs = fsStats(l.node)
	out.Node.Runtime = &statsapi.RuntimeStats{ImageFs: fsStats(l.images), ContainerFs: fsStats(l.images)}
	maxPID, procs := int64(n.MaxPID), int64(n.Processes)
	out.Node.Rlimit = &statsapi.RlimitStats{Time: metav1.NewTime(n.Usage.Time), MaxPID: &maxPID, NumOfRunningProcesses: &procs}
	waits := newBudget(len(s.Pods))
	for i := range s.Pods {
		p, ps := &s.Pods[i], &out.Pods[i]
		d := c.disk(p, waits.next())
		ps.IO = ioStats(p.Figures)
		ps.Network = networkStats(p.NetworkAt, p.Network, "eth0")
		ps.ProcessStats = &statsapi.ProcessStats{ProcessCount: &p.Processes}
		ps.EphemeralStorage = fsStats(ephemeral(p, d, l))
		for j := range p.Containers {
			r := &p.Containers[j]
			ps.Containers[j].IO = ioStats(r.Figures)
			ps.Containers[j].Rootfs = fsStats(l.of[r.ID])
			ps.Containers[j].Logs = fsStats(d.logs[r.Name])
		}
		for _, v := range p.Pod.Spec.Volumes {
			f := fsStats(d.volumes[v.Name])
			if f == nil {
				continue
			}
			one := statsapi.VolumeStats{FsStats: *f, Name: v.Name}
			if claim := d.volumes[v.Name].Claim; claim != "" {
				one.PVCRef = &statsapi.PVCReference{Name: claim, Namespace: p.Pod.Namespace}
			}
			ps.VolumeStats = append(ps.VolumeStats, one)
		}
	}
}

// systemContainers are all pods together, and this agent where it has a group to itself.
func systemContainers(s *Snapshot) []statsapi.ContainerStats {
	var out []statsapi.ContainerStats
	add := func(name string, f Figures) {
		if f.Known {
			out = append(out, statsapi.ContainerStats{Name: name, CPU: cpuStats(f), Memory: memoryStats(f), StartTime: metav1.NewTime(s.Node.Started)})
		}
	}
	if len(s.Classes) > 0 {
		add(statsapi.SystemContainerPods, s.Classes[0])
	}
	add(statsapi.SystemContainerKubelet, s.Node.Self)
	return out
}

func cpuStats(f Figures) *statsapi.CPUStats {
	if !f.Known {
		return nil
	}
	out := &statsapi.CPUStats{Time: metav1.NewTime(f.Usage.Time), UsageNanoCores: &f.Rate, UsageCoreNanoSeconds: &f.Usage.CPU.UsageNs}
	if p := f.Usage.PSI; p != nil {
		out.PSI = psiStats(p.CPU)
	}
	return out
}

func memoryStats(f Figures) *statsapi.MemoryStats {
	if !f.Known {
		return nil
	}
	m := f.Usage.Memory
	out := &statsapi.MemoryStats{
		Time: metav1.NewTime(f.Usage.Time), UsageBytes: &m.Usage, WorkingSetBytes: &m.WorkingSet, RSSBytes: &m.RSS,
		PageFaults: &m.PageFaults, MajorPageFaults: &m.MajorFaults,
	}
	if m.Limit != cgroups.NoLimit {
		out.AvailableBytes = &m.Available
	}
	if p := f.Usage.PSI; p != nil {
		out.PSI = psiStats(p.Memory)
	}
	return out
}

func ioStats(f Figures) *statsapi.IOStats {
	if f.Usage.PSI == nil {
		return nil
	}
	return &statsapi.IOStats{Time: metav1.NewTime(f.Usage.Time), PSI: psiStats(f.Usage.PSI.IO)}
}

func psiStats(p cgroups.Pressure) *statsapi.PSIStats {
	one := func(s cgroups.Stall) statsapi.PSIData {
		return statsapi.PSIData{Total: s.TotalUs * uint64(time.Microsecond), Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &statsapi.PSIStats{Full: one(p.Full), Some: one(p.Some)}
}

func swapOf(f Figures) *statsapi.SwapStats {
	if !f.Known {
		return nil
	}
	return &statsapi.SwapStats{Time: metav1.NewTime(f.Usage.Time), SwapUsageBytes: &f.Usage.Memory.Swap}
}

func swapStats(t time.Time, used, available uint64) *statsapi.SwapStats {
	return &statsapi.SwapStats{Time: metav1.NewTime(t), SwapUsageBytes: &used, SwapAvailableBytes: &available}
}

// networkStats puts the default interface first.
func networkStats(t time.Time, all []Interface, first string) *statsapi.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	out := &statsapi.NetworkStats{Time: metav1.NewTime(t)}
	for _, i := range all {
		one := statsapi.InterfaceStats{Name: i.Name, RxBytes: &i.RxBytes, RxErrors: &i.RxErrors, TxBytes: &i.TxBytes, TxErrors: &i.TxErrors}
		if i.Name == first {
			out.InterfaceStats = one
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out
}

func fsStats(d Disk) *statsapi.FsStats {
	if !d.Known {
		return nil
	}
	return &statsapi.FsStats{
		Time: metav1.NewTime(d.Time), AvailableBytes: &d.Available, CapacityBytes: &d.Capacity, UsedBytes: &d.Used,
		InodesFree: &d.InodesFree, Inodes: &d.Inodes, InodesUsed: &d.InodesUsed,
	}
}
