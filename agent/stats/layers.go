package stats

import (
	"context"
	"math"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// layers is what the runtime says of disks.
type layers struct {
	of     map[string]Disk // writable layers by container ID
	images Disk
	node   Disk // where this agent's own files are
	dir    string
}

// layersEvery is how often the runtime is asked, while somebody asks us. It walks the layers.
const layersEvery = 15 * time.Second

func (c *Collector) disks() layers {
	return c.layers.get(c.aside, layersEvery, patient, func(ctx context.Context) layers {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		out := layers{of: map[string]Disk{}, node: Disk{Time: time.Now()}}
		out.node.Known = out.node.statfs(c.cfg.RootDir, true)
		if r, err := c.cfg.Runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil {
			c.log.Warn("runtime does not tell the size of its images", "error", err)
		} else if list := r.GetImageFilesystems(); len(list) > 0 {
			f := list[0]
			out.dir = f.GetFsId().GetMountpoint()
			out.images = Disk{Time: time.Unix(0, f.GetTimestamp()), Used: f.GetUsedBytes().GetValue(), InodesUsed: f.GetInodesUsed().GetValue()}
			out.images.Known = out.images.statfs(out.dir, false)
		}
		for id, w := range c.written(ctx) {
			d := Disk{Time: time.Unix(0, w.GetTimestamp()), Used: w.GetUsedBytes().GetValue(), InodesUsed: w.GetInodesUsed().GetValue(), Known: true}
			d.Capacity, d.Available, d.Inodes, d.InodesFree = out.images.Capacity, out.images.Available, out.images.Inodes, out.images.InodesFree
			out.of[id] = d
		}
		return out
	})
}

// written is what containers have written, by their ids.
func (c *Collector) written(ctx context.Context) map[string]*runtimeapi.FilesystemUsage {
	if c.cfg.Layers != nil {
		return c.cfg.Layers(ctx)
	}
	r, err := c.cfg.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		c.log.Warn("runtime does not tell the sizes of its containers", "error", err)
	}
	out := map[string]*runtimeapi.FilesystemUsage{}
	for _, s := range r.GetStats() {
		if w := s.GetWritableLayer(); w != nil {
			out[s.GetAttributes().GetId()] = w
		}
	}
	return out
}

// fill asks the runtime for what could not be read: the containers of runtimes that keep them where this kernel does
// not see them.
func (c *Collector) fill(ctx context.Context, s *Snapshot) {
	var missing []*Pod
	for i := range s.Pods {
		p := &s.Pods[i]
		for j := range p.Containers {
			if !p.Containers[j].Known {
				missing = append(missing, p)
				break
			}
		}
	}
	if len(missing) == 0 {
		return
	}
	r, err := c.cfg.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		c.log.Warn("runtime does not tell what its containers use", "error", err)
		return
	}
	byUID := map[string]*runtimeapi.LinuxPodSandboxStats{}
	for _, one := range r.GetStats() {
		byUID[one.GetAttributes().GetMetadata().GetUid()] = one.GetLinux()
	}
	for _, p := range missing {
		fillPod(p, byUID[string(p.Pod.UID)])
	}
}

func fillPod(p *Pod, from *runtimeapi.LinuxPodSandboxStats) {
	for i := range p.Containers {
		one := &p.Containers[i]
		for _, s := range from.GetContainers() {
			if !one.Known && s.GetAttributes().GetId() == one.ID {
				one.Figures = fromCRI(s.GetCpu(), s.GetMemory(), s.GetIo(), s.GetSwap())
			}
		}
	}
	if !p.Known {
		p.Figures = fromCRI(from.GetCpu(), from.GetMemory(), from.GetIo(), nil)
		p.Usage.Pids.Current = from.GetProcess().GetProcessCount().GetValue()
		p.Processes = p.Usage.Pids.Current
	}
	if len(p.Network) == 0 && !p.Pod.Spec.HostNetwork && from.GetNetwork() != nil {
		p.NetworkAt = time.Unix(0, from.GetNetwork().GetTimestamp())
		for _, i := range append([]*runtimeapi.NetworkInterfaceUsage{from.GetNetwork().GetDefaultInterface()}, from.GetNetwork().GetInterfaces()...) {
			if i != nil {
				p.Network = append(p.Network, Interface{
					Name: i.GetName(), RxBytes: i.GetRxBytes().GetValue(), RxErrors: i.GetRxErrors().GetValue(),
					TxBytes: i.GetTxBytes().GetValue(), TxErrors: i.GetTxErrors().GetValue(),
				})
			}
		}
	}
}

// fromCRI turns the runtime's figures into ours. It has fewer.
func fromCRI(cpu *runtimeapi.CpuUsage, m *runtimeapi.MemoryUsage, io *runtimeapi.IoUsage, swap *runtimeapi.SwapUsage) Figures {
	f := Figures{Known: cpu != nil || m != nil}
	u := &f.Usage
	u.Time = time.Unix(0, max(cpu.GetTimestamp(), m.GetTimestamp()))
	u.CPU.UsageNs, f.Rate = cpu.GetUsageCoreNanoSeconds().GetValue(), cpu.GetUsageNanoCores().GetValue()
	u.Memory = cgroups.Memory{
		Usage: m.GetUsageBytes().GetValue(), WorkingSet: m.GetWorkingSetBytes().GetValue(), RSS: m.GetRssBytes().GetValue(),
		PageFaults: m.GetPageFaults().GetValue(), MajorFaults: m.GetMajorPageFaults().GetValue(),
		Swap: swap.GetSwapUsageBytes().GetValue(), Limit: cgroups.NoLimit, Available: cgroups.NoLimit,
	}
	if v := m.GetAvailableBytes().GetValue(); v > 0 && v < math.MaxInt64 {
		u.Memory.Available, u.Memory.Limit = v, v+u.Memory.WorkingSet
	}
	u.Pids.Limit = cgroups.NoLimit
	if cpu.GetPsi() != nil || m.GetPsi() != nil || io.GetPsi() != nil {
		u.PSI = &cgroups.PSI{CPU: criPressure(cpu.GetPsi()), Memory: criPressure(m.GetPsi()), IO: criPressure(io.GetPsi())}
	}
	return f
}

func criPressure(p *runtimeapi.PsiStats) cgroups.Pressure {
	one := func(d *runtimeapi.PsiData) cgroups.Stall {
		return cgroups.Stall{Avg10: d.GetAvg10(), Avg60: d.GetAvg60(), Avg300: d.GetAvg300(), TotalUs: d.GetTotal() / 1000}
	}
	return cgroups.Pressure{Some: one(p.GetSome()), Full: one(p.GetFull())}
}

// ephemeral adds up what a pod takes of the node's disk: layers, logs, volumes that are no file system of their own,
// and what its containers write into files that the node has made for them.
func ephemeral(p *Pod, d disk, l layers) Disk {
	out := Disk{Time: time.Now(), Known: true}
	for _, r := range p.Containers {
		out.add(l.of[r.ID])
	}
	for _, x := range d.logs {
		out.add(x)
	}
	for _, x := range d.volumes {
		if !x.Own && x.Claim == "" {
			out.add(x)
		}
	}
	out.add(d.rest)
	out.Capacity, out.Available, out.Inodes, out.InodesFree = l.node.Capacity, l.node.Available, l.node.Inodes, l.node.InodesFree
	return out
}
