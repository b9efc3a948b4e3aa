package cri

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/metrics"
)

// ContainerStats returns what a container uses.
func (s *Server) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return call(ctx, "ContainerStats", func(ctx context.Context) (*runtimeapi.ContainerStatsResponse, error) {
		c, err := s.ctrs.byID.get(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		st, err := s.ctrs.stats(ctx, c)
		return &runtimeapi.ContainerStatsResponse{Stats: st}, err
	})
}

// ListContainerStats returns what the containers that run use.
func (s *Server) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return call(ctx, "ListContainerStats", func(ctx context.Context) (*runtimeapi.ListContainerStatsResponse, error) {
		f := r.GetFilter()
		out := &runtimeapi.ListContainerStatsResponse{}
		for _, c := range s.ctrs.match(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
			if c.record().State != containerRunning {
				continue
			}
			// It may have ended just now; then it is one that does not run.
			if st, err := s.ctrs.stats(ctx, c); err == nil {
				out.Stats = append(out.Stats, st)
			}
		}
		return out, nil
	})
}

// PodSandboxStats returns what a sandbox uses.
func (s *Server) PodSandboxStats(ctx context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return call(ctx, "PodSandboxStats", func(ctx context.Context) (*runtimeapi.PodSandboxStatsResponse, error) {
		sb, err := s.pods.byID.get(r.GetPodSandboxId())
		if err != nil {
			return nil, err
		}
		if _, err := sb.live(); err != nil {
			return nil, err
		}
		st, err := s.pods.stats(ctx, sb)
		return &runtimeapi.PodSandboxStatsResponse{Stats: st}, err
	})
}

// ListPodSandboxStats returns what the sandboxes that are ready use.
func (s *Server) ListPodSandboxStats(ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return call(ctx, "ListPodSandboxStats", func(ctx context.Context) (*runtimeapi.ListPodSandboxStatsResponse, error) {
		f := r.GetFilter()
		out := &runtimeapi.ListPodSandboxStatsResponse{}
		for _, item := range s.pods.list(&runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()}) {
			sb, err := s.pods.byID.get(item.GetId())
			if err != nil || sb.state() != sandboxReady {
				continue
			}
			if st, err := s.pods.stats(ctx, sb); err == nil {
				out.Stats = append(out.Stats, st)
			}
		}
		return out, nil
	})
}

func (cs *containers) stats(ctx context.Context, c *container) (*runtimeapi.ContainerStats, error) {
	st, _, err := cs.measure(ctx, c)
	return st, err
}

// measure is stats, with what they were made of.
func (cs *containers) measure(ctx context.Context, c *container) (*runtimeapi.ContainerStats, cgroups.Usage, error) {
	var u cgroups.Usage
	st := &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{
		Id: c.id, Metadata: c.cfg.GetMetadata(), Labels: c.cfg.GetLabels(), Annotations: c.cfg.GetAnnotations(),
	}}
	rec := c.record()
	if rec.State == containerRunning {
		var err error
		if u, err = cs.cgroups.Stat(rec.Cgroup); err != nil {
			return nil, u, err
		}
		st.Cpu, st.Memory, st.Io = cpuUsage(u, &c.rate), memoryUsage(u), ioUsage(u)
		res := &runtimeapi.LinuxContainerResources{}
		if err := decode(rec.Resources, res); err != nil {
			return nil, u, err
		}
		st.Swap = swapUsage(u, res)
	}
	st.WritableLayer = cs.layer(ctx, c)
	return st, u, nil
}

// layer is what a container has written; nil when that is not known.
func (cs *containers) layer(ctx context.Context, c *container) *runtimeapi.FilesystemUsage {
	layer, err := cs.snaps.Usage(ctx, c.id)
	if err != nil {
		return nil
	}
	for i := range c.record().Volumes {
		if v, err := cs.snaps.Usage(ctx, volumeKey(c.id, i)); err == nil {
			layer.Bytes, layer.Inodes = layer.Bytes+v.Bytes, layer.Inodes+v.Inodes
		}
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: cs.paths.snapshots()},
		UsedBytes: value(layer.Bytes), InodesUsed: value(layer.Inodes),
	}
}

// Layers is what the containers that run have written, by their ids: of ListContainerStats what nobody can read out of the kernel who
// knows their groups. The rest of that costs many times as much.
func (s *Server) Layers(ctx context.Context) map[string]*runtimeapi.FilesystemUsage {
	out := map[string]*runtimeapi.FilesystemUsage{}
	for _, c := range s.ctrs.match("", "", nil) {
		if c.record().State != containerRunning {
			continue
		}
		if layer := s.ctrs.layer(ctx, c); layer != nil {
			out[c.id] = layer
		}
	}
	return out
}

func value(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

func cpuUsage(u cgroups.Usage, rate *cpuRate) *runtimeapi.CpuUsage {
	out := &runtimeapi.CpuUsage{Timestamp: u.Time.UnixNano(), UsageCoreNanoSeconds: value(u.CPU.UsageNs), UsageNanoCores: rate.see(u)}
	if u.PSI != nil {
		out.Psi = psi(u.PSI.CPU)
	}
	return out
}

func memoryUsage(u cgroups.Usage) *runtimeapi.MemoryUsage {
	m := u.Memory
	out := &runtimeapi.MemoryUsage{
		Timestamp: u.Time.UnixNano(), WorkingSetBytes: value(m.WorkingSet), UsageBytes: value(m.Usage), RssBytes: value(m.RSS),
		PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorFaults),
	}
	// Nothing is said about what is available where there is no limit.
	out.AvailableBytes = value(0)
	if m.Limit != cgroups.NoLimit && m.Limit > m.WorkingSet {
		out.AvailableBytes = value(m.Limit - m.WorkingSet)
	}
	if u.PSI != nil {
		out.Psi = psi(u.PSI.Memory)
	}
	return out
}

func ioUsage(u cgroups.Usage) *runtimeapi.IoUsage {
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

// stats of a pod are those of its cgroup parent, which is the pod's own. Without one its groups stand beside each other, and it is
// their sum.
func (p *pods) stats(ctx context.Context, sb *sandbox) (*runtimeapi.PodSandboxStats, error) {
	rec := sb.record()
	linux := &runtimeapi.LinuxPodSandboxStats{}
	var parts []cgroups.Usage
	for _, c := range sb.containers() {
		if c.record().State != containerRunning {
			continue
		}
		// It may have ended just now; then it is one that does not run.
		if st, u, err := p.containers.measure(ctx, c); err == nil {
			linux.Containers, parts = append(linux.Containers, st), append(parts, u)
		}
	}
	u, err := p.usage(sb, rec.Cgroup, parts)
	if err != nil {
		return nil, err
	}
	linux.Cpu, linux.Memory, linux.Io = cpuUsage(u, &sb.rate), memoryUsage(u), ioUsage(u)
	linux.Process = &runtimeapi.ProcessUsage{Timestamp: u.Time.UnixNano(), ProcessCount: value(u.Pids.Current)}
	linux.Network = networkUsage(rec.Pid, rec.NetNS)
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: sb.id, Metadata: sb.cfg.GetMetadata(), Labels: sb.cfg.GetLabels(), Annotations: sb.cfg.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}

func (p *pods) usage(sb *sandbox, group string, containers []cgroups.Usage) (cgroups.Usage, error) {
	if sb.cfg.GetLinux().GetCgroupParent() != "" {
		return p.cgroups.Stat(filepath.Dir(group))
	}
	u, err := p.cgroups.Stat(group)
	if err != nil {
		return cgroups.Usage{}, err
	}
	u.PSI = nil // the time that some of several groups waited is not the sum of what each of them waited
	for _, of := range containers {
		add(&u, of)
	}
	return u, nil
}

func add(u *cgroups.Usage, of cgroups.Usage) {
	u.CPU.UsageNs += of.CPU.UsageNs
	u.Memory.Usage += of.Memory.Usage
	u.Memory.WorkingSet += of.Memory.WorkingSet
	u.Memory.RSS += of.Memory.RSS
	u.Memory.PageFaults += of.Memory.PageFaults
	u.Memory.MajorFaults += of.Memory.MajorFaults
	u.Pids.Current += of.Pids.Current
}

// networkUsage is the use of the pod's interfaces, nil for a pod in the host's network.
func networkUsage(keeperPid int, netns string) *runtimeapi.NetworkUsage {
	all := podInterfaces(keeperPid, netns)
	if all == nil {
		return nil
	}
	out := &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range all {
		u := &runtimeapi.NetworkInterfaceUsage{
			Name: i.Name, RxBytes: value(i.RxBytes), RxErrors: value(i.RxErrors), TxBytes: value(i.TxBytes), TxErrors: value(i.TxErrors),
		}
		if i.Name == "eth0" {
			out.DefaultInterface = u
		} else {
			out.Interfaces = append(out.Interfaces, u)
		}
	}
	return out
}

// podInterfaces reads the counters of the pod's interfaces, but for the loopback, through its keeper, which is in the pod's
// network: that needs no thread to enter it.
func podInterfaces(keeperPid int, netns string) []metrics.Interface {
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

// swapUsage says what is left where memory and swap are limited together.
func swapUsage(u cgroups.Usage, r *runtimeapi.LinuxContainerResources) *runtimeapi.SwapUsage {
	out := &runtimeapi.SwapUsage{Timestamp: u.Time.UnixNano(), SwapUsageBytes: value(u.Memory.Swap)}
	mem, both := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	if both == 0 {
		both = mem // none unless it is asked for
	}
	if mem > 0 && both >= mem {
		left := uint64(both - mem)
		out.SwapAvailableBytes = value(left - min(left, u.Memory.Swap))
	}
	return out
}
