package cri

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/metrics"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/usage"
)

// ListMetricDescriptors describes the metrics of pods and containers: those that this machine can measure.
func (m *meters) ListMetricDescriptors(ctx context.Context, _ *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return call(ctx, "ListMetricDescriptors", func(context.Context) (*runtimeapi.ListMetricDescriptorsResponse, error) {
		// The launchers' group is there as long as the runtime is.
		u, err := m.host.Cgroups.Stat(m.host.LaunchCgroup())
		if err != nil {
			return nil, err
		}
		d, err := m.host.Cgroups.Detail(m.host.LaunchCgroup())
		if err != nil {
			return nil, err
		}
		m := metrics.Machine{Hugepages: len(d.Hugepages) > 0, Pressure: u.PSI != nil}
		return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: metrics.Descriptors(m)}, nil
	})
}

// ListPodSandboxMetrics measures the pods that are ready and their containers that run.
func (m *meters) ListPodSandboxMetrics(ctx context.Context, _ *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return call(ctx, "ListPodSandboxMetrics", func(ctx context.Context) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
		return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: m.podMetrics(ctx)}, nil
	})
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics as a stream.
func (m *meters) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, stream grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	// A pod has a hundred metrics a container.
	for _, p := range m.podMetrics(stream.Context()) {
		if err := stream.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: []*runtimeapi.PodSandboxMetrics{p}}); err != nil {
			return err
		}
	}
	return nil
}

func (m *meters) podMetrics(ctx context.Context) []*runtimeapi.PodSandboxMetrics {
	of := measurer{host: m.host, containers: m.ctrs, fs: filesystemOf(m.host.Paths.Snapshots()), devices: deviceNames{}}
	var out []*runtimeapi.PodSandboxMetrics
	for _, sb := range m.pods.Table.ByID.All(sandbox.Newest) {
		if sb.State() != sandbox.Ready || ctx.Err() != nil {
			continue
		}
		out = append(out, of.pod(ctx, sb))
	}
	return out
}

// measurer measures many containers, and looks once for what they have in common.
type measurer struct {
	host       *host.Host
	containers *container.Containers
	fs         metrics.Filesystem
	devices    deviceNames
}

func (m *measurer) pod(ctx context.Context, sb *sandbox.Sandbox) *runtimeapi.PodSandboxMetrics {
	rec, meta := sb.Record(), sb.Config.GetMetadata()
	l := metrics.Labels{ID: sb.ID, Namespace: meta.GetNamespace(), Pod: meta.GetName()}
	out := &runtimeapi.PodSandboxMetrics{PodSandboxId: sb.ID, Metrics: metrics.OfPod(l, usage.Interfaces(rec.Pid, rec.NetNS), time.Now())}
	for _, c := range m.containers.Table.Of(sb) {
		// It may have ended just now; then it is one that does not run.
		if got, err := m.container(ctx, c, l); err == nil {
			out.ContainerMetrics = append(out.ContainerMetrics, got)
		}
	}
	return out
}

func (m *measurer) container(ctx context.Context, c *container.Container, l metrics.Labels) (*runtimeapi.ContainerMetrics, error) {
	cs, rec := m.containers, c.Record()
	if rec.State != container.Running {
		return nil, fault.ErrPrecondition
	}
	usage, err := m.host.Cgroups.Stat(rec.Cgroup)
	if err != nil {
		return nil, err
	}
	detail, err := m.host.Cgroups.Detail(rec.Cgroup)
	if err != nil {
		return nil, err
	}
	pids, err := m.host.Cgroups.Pids(rec.Cgroup)
	if err != nil {
		return nil, err
	}
	l.ID, l.Container, l.Image = c.ID, c.Config.GetMetadata().GetName(), container.ImageSpec(c.Config.GetImage(), rec).GetImage()
	in := &metrics.Container{
		Labels: l, Seen: usage.Time, Started: time.Unix(0, rec.StartedAt), Usage: usage, Detail: detail,
		Processes: processesOf(pids, rec.Pid), Filesystem: m.fs, Name: m.devices.name,
	}
	if layer := cs.Meter.Layer(ctx, c); layer != nil {
		in.Filesystem.Used = layer.GetUsedBytes().GetValue()
	} else {
		in.Filesystem.Known = false
	}
	return &runtimeapi.ContainerMetrics{ContainerId: c.ID, Metrics: metrics.OfContainer(in)}, nil
}

// processesOf counts what processes have open. Those that end meanwhile have nothing open.
func processesOf(pids []int, first int) metrics.Processes {
	p := metrics.Processes{Count: uint64(len(pids))}
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		files, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		p.Files += uint64(len(files))
		for _, f := range files {
			if to, err := os.Readlink(dir + "/" + f.Name()); err == nil && strings.HasPrefix(to, "socket:") {
				p.Sockets++
			}
		}
	}
	var lim unix.Rlimit
	if first > 0 && unix.Prlimit(first, unix.RLIMIT_NOFILE, nil, &lim) == nil {
		p.OpenFilesLimit = lim.Cur
	}
	return p
}

// filesystemOf looks at the filesystem that a directory is on.
func filesystemOf(dir string) metrics.Filesystem {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return metrics.Filesystem{}
	}
	f := metrics.Filesystem{Known: true, Size: st.Blocks * uint64(st.Bsize), Inodes: st.Files, FreeInodes: st.Ffree}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil {
		return f
	}
	deepest := -1
	for _, m := range mounts {
		// Of mounts at one place the last is on top.
		if len(m.Mountpoint) >= deepest {
			deepest, f.Device = len(m.Mountpoint), m.Source
		}
	}
	return f
}

// deviceNames remembers the names of block devices by their numbers.
type deviceNames map[uint64]string

func (d deviceNames) name(major, minor uint32) string {
	dev := unix.Mkdev(major, minor)
	if n, ok := d[dev]; ok {
		return n
	}
	d[dev] = ""
	b, err := os.ReadFile("/sys/dev/block/" + strconv.Itoa(int(major)) + ":" + strconv.Itoa(int(minor)) + "/uevent")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "DEVNAME="); ok {
			d[dev] = "/dev/" + strings.TrimSpace(n)
		}
	}
	return d[dev]
}
