package cri

import (
	"context"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/usage"
	"github.com/berth-node/berth/internal/turns"
)

// ContainerStats returns what a container uses.
func (m *meters) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return call(ctx, "ContainerStats", func(ctx context.Context) (*runtimeapi.ContainerStatsResponse, error) {
		c, err := m.ctrs.Table.ByID.Get(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		st, err := m.ctrs.Meter.Stats(ctx, c)
		return &runtimeapi.ContainerStatsResponse{Stats: st}, err
	})
}

// ListContainerStats returns what the containers that run use.
func (m *meters) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return call(ctx, "ListContainerStats", func(ctx context.Context) (*runtimeapi.ListContainerStatsResponse, error) {
		f := r.GetFilter()
		out := &runtimeapi.ListContainerStatsResponse{}
		for _, c := range m.ctrs.Table.Match(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector()) {
			if c.Record().State != container.Running {
				continue
			}
			// It may have ended just now; then it is one that does not run. One that runs and whose group cannot be
			// read, as somebody has moved it elsewhere, has written what it has all the same.
			if st, err := m.ctrs.Meter.Stats(ctx, c); err == nil || c.Record().State == container.Running {
				out.Stats = append(out.Stats, st)
			}
		}
		return out, nil
	})
}

// PodSandboxStats returns what a sandbox uses.
func (m *meters) PodSandboxStats(ctx context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return call(ctx, "PodSandboxStats", func(ctx context.Context) (*runtimeapi.PodSandboxStatsResponse, error) {
		sb, err := m.pods.Table.ByID.Get(r.GetPodSandboxId())
		if err != nil {
			return nil, err
		}
		if _, err := sb.Live(); err != nil {
			return nil, err
		}
		st, err := m.ofPod(ctx, sb)
		return &runtimeapi.PodSandboxStatsResponse{Stats: st}, err
	})
}

// ListPodSandboxStats returns what the sandboxes that are ready use.
func (m *meters) ListPodSandboxStats(ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return call(ctx, "ListPodSandboxStats", func(ctx context.Context) (*runtimeapi.ListPodSandboxStatsResponse, error) {
		f := r.GetFilter()
		out := &runtimeapi.ListPodSandboxStatsResponse{}
		for _, item := range m.pods.Table.List(&runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()}) {
			sb, err := m.pods.Table.ByID.Get(item.GetId())
			if err != nil || sb.State() != sandbox.Ready {
				continue
			}
			if st, err := m.ofPod(ctx, sb); err == nil {
				out.Stats = append(out.Stats, st)
			}
		}
		return out, nil
	})
}

// How many layers are counted at once, and for how long each at first.
const (
	layersAtOnce = 4
	layerFirst   = 500 * time.Millisecond
)

// layers is what the containers that run have written, by their ids: of ListContainerStats what nobody can read out of
// the kernel who knows their groups. The rest of that costs many times as much. One that has more
// files than can be counted hides no other.
func (m *meters) layers(ctx context.Context) map[string]*runtimeapi.FilesystemUsage {
	var running []*container.Container
	for _, c := range m.ctrs.Table.Match("", "", nil) {
		if c.Record().State == container.Running {
			running = append(running, c)
		}
	}
	out := map[string]*runtimeapi.FilesystemUsage{}
	for i, layer := range m.weigh(ctx, running) {
		if layer != nil {
			out[running[i].ID] = layer
		}
	}
	return out
}

// weigh counts the layers of containers, as many as it can until ctx ends. Of those that take too long it has what
// could be counted.
func (m *meters) weigh(ctx context.Context, of []*container.Container) []*runtimeapi.FilesystemUsage {
	found := make([]*runtimeapi.FilesystemUsage, len(of))
	share := turns.Config{AtOnce: layersAtOnce, First: layerFirst}
	turns.Do(ctx, len(of), share, func(ctx context.Context, i int) bool {
		layer := m.ctrs.Meter.Layer(ctx, of[i])
		ended := ctx.Err() == nil
		if ended || layer.GetInodesUsed().GetValue() >= found[i].GetInodesUsed().GetValue() {
			found[i] = layer
		}
		return ended
	})
	return found
}

// meters measure pods and containers.
type meters struct {
	host *host.Host
	pods *sandbox.Sandboxes
	ctrs *container.Containers
}

// ofPod are the stats of a pod those of its cgroup parent, which is the pod's own. Without one its groups stand beside
// each other, and it is their sum.
func (m *meters) ofPod(ctx context.Context, sb *sandbox.Sandbox) (*runtimeapi.PodSandboxStats, error) {
	rec := sb.Record()
	linux := &runtimeapi.LinuxPodSandboxStats{}
	var parts []cgroups.Usage
	for _, c := range m.ctrs.Table.Of(sb) {
		if c.Record().State != container.Running {
			continue
		}
		// It may have ended just now; then it is one that does not run.
		if st, u, err := m.ctrs.Meter.Measure(ctx, c); err == nil {
			linux.Containers, parts = append(linux.Containers, st), append(parts, u)
		}
	}
	u, err := m.usage(sb, rec.Cgroup, parts)
	if err != nil {
		return nil, err
	}
	linux.Cpu, linux.Memory, linux.Io = usage.CPU(u, &sb.Rate), usage.Memory(u), usage.IO(u)
	linux.Process = &runtimeapi.ProcessUsage{Timestamp: u.Time.UnixNano(), ProcessCount: usage.Value(u.Pids.Current)}
	linux.Network = usage.Network(rec.Pid, rec.NetNS)
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: sb.ID, Metadata: sb.Config.GetMetadata(), Labels: sb.Config.GetLabels(), Annotations: sb.Config.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}

func (m *meters) usage(sb *sandbox.Sandbox, group string, containers []cgroups.Usage) (cgroups.Usage, error) {
	if sb.Config.GetLinux().GetCgroupParent() != "" {
		return m.host.Cgroups.Stat(filepath.Dir(group))
	}
	u, err := m.host.Cgroups.Stat(group)
	if err != nil {
		return cgroups.Usage{}, err
	}
	u.PSI = nil // the time that some of several groups waited is not the sum of what each of them waited
	for _, of := range containers {
		usage.Add(&u, of)
	}
	return u, nil
}
