// Package stats says what the pods, their containers and the node use, in the words of kubelet: the summary that
// autoscalers read, and the metrics that dashboards are made for.
//
// Nothing is measured while nobody asks. Who asks gets a measurement that is not older than a moment, and all who ask
// at once share it. CPU, memory, tasks, io and pressure come from the kernel's files of each group, which stay open
// between measurements; what is dear, the size of files, is found out beside and seldom.
package stats

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/internal/patience"
)

// Runtime is what is asked of the container runtime: the sizes of images and of containers' writable layers, and all
// figures of containers whose groups cannot be read.
type Runtime interface {
	ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error)
	ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error)
	ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error)
}

// Config is what a [Collector] works with. All but Log and Layers is required.
type Config struct {
	Pods    func() []*corev1.Pod
	Groups  *cgroups.Hierarchy
	PodPath func(*corev1.Pod) string // of the pod's group
	Classes []string                 // groups of the QoS classes, that of all pods first
	Runtime Runtime
	// Layers is what containers have written, by their ids; nil: the runtime's statistics are asked, which are more
	// than that.
	Layers func(context.Context) map[string]*runtimeapi.FilesystemUsage

	// Volume is what a driver says of a pod's volume of that name; !ok: it is none of a driver. nil: there are no
	// drivers.
	Volume func(ctx context.Context, pod *corev1.Pod, name string) (d Disk, ok bool)

	NodeName string
	Memory   int64  // of the node in bytes
	RootDir  string // pods' volumes are under pods/<uid>/volumes
	LogDir   string // logs are under <namespace>_<name>_<uid>/<container>
	Log      *slog.Logger
}

const (
	// fresh is how old a measurement may be that is handed out again.
	fresh = time.Second
	// window is how far apart two measurements may be for a rate between them to be one of now.
	window = time.Minute
	// prime is the distance of two measurements when the first one for long is asked for.
	prime = 200 * time.Millisecond
	// idleAfter is when the files are closed, if nobody has asked.
	idleAfter = 2 * time.Minute
	// filesPerGroup is how many descriptors a measured group takes at most.
	filesPerGroup = 24
)

// Collector measures. Its methods can be called at any time.
type Collector struct {
	cfg Config
	log *slog.Logger

	aside  *aside
	layers slow[layers]
	layout slow[*topology.Machine]
	io     devices
	calls  patience.Calls // of volumes, which may not answer

	mu    sync.Mutex
	last  *Snapshot
	meter *meter
	idle  *time.Timer
}

// New returns a collector that has measured nothing yet.
func New(c Config) *Collector {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m := &Collector{cfg: c, log: c.Log, aside: newAside()}
	m.meter = newMeter(&m.cfg)
	m.idle = time.AfterFunc(idleAfter, m.rest)
	return m
}

// Close ends what runs beside and closes the files.
func (c *Collector) Close() {
	c.idle.Stop()
	c.aside.end()
	c.rest()
}

// rest closes the files until somebody asks again.
func (c *Collector) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meter.keep(nil, nil)
	c.last = nil
}

// Snapshot is one measurement of everything.
type Snapshot struct {
	Time    time.Time
	Node    Node
	Classes []Figures // as in Config
	Pods    []Pod
	brief   bool // only CPU time and memory are of now
	took    time.Duration
}

// Figures are those of one group.
type Figures struct {
	Path  string
	Usage cgroups.Usage
	// Rate is the CPU time since the measurement before in nanoseconds a second.
	Rate uint64
	// Processes are those in the group and below it.
	Processes uint64
	Known     bool
}

// Pod is what one pod uses.
type Pod struct {
	Figures
	Pod        *corev1.Pod
	Network    []Interface // none: the pod is on the node's network
	NetworkAt  time.Time
	Containers []Container
	state      *podState
}

// Container is what a container that runs uses.
type Container struct {
	Figures
	Name, ID, Image string
	Started         time.Time
	Spec            *corev1.Container
}

// Snapshot measures, unless that was done a moment ago. With rates it sees to it that there is a measurement before.
func (c *Collector) Snapshot(ctx context.Context, rates bool) (*Snapshot, error) {
	return c.snapshot(ctx, rates, false)
}

// snapshot is Snapshot; brief it has CPU time and memory alone, if nobody else has asked for more just now.
func (c *Collector) snapshot(ctx context.Context, rates, brief bool) (*Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle.Reset(idleAfter)
	if rates && (c.last == nil || time.Since(c.last.Time) > window) {
		c.measure(ctx, brief)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(prime):
		}
		c.last = c.measure(ctx, brief)
	}
	if c.last == nil || time.Since(c.last.Time) > fresh || c.last.brief && !brief {
		c.last = c.measure(ctx, brief)
	}
	return c.last, ctx.Err()
}

// measure has what the groups tell, and what the runtime does of those that cannot be read.
func (c *Collector) measure(ctx context.Context, brief bool) *Snapshot {
	s := c.meter.measure(brief)
	c.fill(ctx, s)
	s.took = time.Since(s.Time)
	return s
}
