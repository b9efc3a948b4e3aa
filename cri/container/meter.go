package container

import (
	"context"
	"time"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/usage"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Meter measures containers.
type Meter struct{ host *host.Host }

// Stats is what a container uses.
func (m *Meter) Stats(ctx context.Context, c *Container) (*runtimeapi.ContainerStats, error) {
	st, _, err := m.Measure(ctx, c)
	return st, err
}

// Measure is stats, with what they were made of. With an error of its group it has what the container has written.
func (m *Meter) Measure(ctx context.Context, c *Container) (*runtimeapi.ContainerStats, cgroups.Usage, error) {
	var u cgroups.Usage
	st := &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{
		Id: c.ID, Metadata: c.Config.GetMetadata(), Labels: c.Config.GetLabels(), Annotations: c.Config.GetAnnotations(),
	}}
	rec := c.Record()
	if rec.State == Running {
		var err error
		if u, err = m.host.Cgroups.Stat(rec.Cgroup); err != nil {
			st.WritableLayer = m.Layer(ctx, c)
			return st, u, err
		}
		st.Cpu, st.Memory, st.Io = usage.CPU(u, &c.rate), usage.Memory(u), usage.IO(u)
		res := &runtimeapi.LinuxContainerResources{}
		if err := ledger.Decode(rec.Resources, res); err != nil {
			st.WritableLayer = m.Layer(ctx, c)
			return st, u, err
		}
		st.Swap = usage.Swap(u, res)
	}
	st.WritableLayer = m.Layer(ctx, c)
	return st, u, nil
}

// Layer is what a container has written; nil when that is not known. What could be counted of it is there in any case:
// a container that makes more files than can be counted in time, or moves them while they are, has no less for it.
func (m *Meter) Layer(ctx context.Context, c *Container) *runtimeapi.FilesystemUsage {
	layer, err := m.host.Snaps.Usage(ctx, c.ID)
	if err != nil && layer.Inodes == 0 {
		return nil
	}
	for i := range c.Record().Volumes {
		v, _ := m.host.Snaps.Usage(ctx, volumeKey(c.ID, i)) // it returns what it could count
		layer.Bytes, layer.Inodes = layer.Bytes+v.Bytes, layer.Inodes+v.Inodes
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: m.host.Paths.Snapshots()},
		UsedBytes: usage.Value(layer.Bytes), InodesUsed: usage.Value(layer.Inodes),
	}
}
