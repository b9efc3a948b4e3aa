package agent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pressure"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/cgroups/oom"
	kernel "github.com/berth-node/berth/cgroups/pressure"
	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/limit"
	"github.com/berth-node/berth/eviction/sensor"
	"github.com/berth-node/berth/eviction/signal"
)

// evictionsFile is where past evictions outlive a restart, below the root directory.
const evictionsFile = "evictions.json"

// conditionsFile is where it outlives a restart which conditions of the node hold, below the root directory.
const conditionsFile = "conditions.json"

// podGroups are the groups of pods as eviction asks for them.
type podGroups struct {
	*kube.Tree
	memory kube.MemoryReading
}

var _ pressure.Groups = podGroups{}

// Memory implements [pressure.Groups].
func (g podGroups) Memory(p *corev1.Pod) (uint64, error) { return kube.MemoryOf(g.Tree, p, g.memory) }

// MemoryOfContainers implements [pressure.Groups].
func (g podGroups) MemoryOfContainers(p *corev1.Pod) (map[string]uint64, error) {
	return kube.MemoryOfContainers(g.Tree, p, g.memory)
}

// Tasks implements [pressure.Groups].
func (g podGroups) Tasks(p *corev1.Pod) (uint64, error) { return kube.Tasks(g.Tree, p) }

// KillContainers implements [pressure.Groups].
func (g podGroups) KillContainers(ctx context.Context, of *corev1.Pod, ids []string) error {
	return kube.KillContainers(ctx, g.Tree, of, ids)
}

// evictions is how pods are evicted when the node runs short.
type evictions struct {
	node   *pressure.Node
	view   *pressure.View
	reader *signal.Node
	groups *cgroups.Hierarchy
	pods   string          // the group of all pods
	stall  *eviction.Stall // nil: no pod goes before the node stalls
	limits *limit.Config   // nil: nobody is held to limits of what is on the disk
	log    *slog.Logger
}

// evictable is what pods are evicted from.
type evictable struct {
	groups *cgroups.Hierarchy
	tree   *kube.Tree
	pods   *pod.Manager
	images pressure.Images
	events *event.Recorder
}

// evictionRules are those that pods are ranked by when memory is short. Swap counts where pods may use it.
func evictionRules(c *Config, groups *cgroups.Hierarchy) kube.Evicts {
	kubelet := c.Evict.MemoryAvailable == config.MemoryKubelet
	swap := c.Resources.Swap == string(kube.LimitedSwap) && groups.Mode() == cgroups.Unified
	return kube.Evicts{WorkingSet: kubelet, Swap: swap && !kubelet, SparesStatic: c.Joined()}
}

// openEviction puts together what pods are evicted by. The pods are there already.
func openEviction(c *Config, of evictable) (evictions, error) {
	policy, err := c.EvictionPolicy()
	if err != nil {
		return evictions{}, err
	}
	// What pods have is counted as what is left is: who has nothing but cache is not the one to go.
	rules := evictionRules(c, of.groups)
	reading, memory := signal.Kernel, cgroups.Unreclaimable
	switch {
	case rules.WorkingSet:
		reading, memory = signal.Kubelet, cgroups.WorkingSet
	case rules.Swap:
		memory = cgroups.Taken
	}
	pods := pod.NewEvictor(of.pods)
	images, group := imageDir(c), of.tree.ClassPath(corev1.PodQOSGuaranteed)
	node := pressure.New(pressure.Config{
		Pods: pods, Groups: podGroups{of.tree, memory}, Dead: pod.NewPruner(of.pods), Images: of.images, Shed: c.Shed, Events: of.events,
		Again: pods.Again, Cluster: c.Joined(), RootDir: c.RootDir, ImageDir: images,
		File: filepath.Join(c.RootDir, evictionsFile), Held: filepath.Join(c.RootDir, conditionsFile),
		Transition: policy.Transition, Log: c.Log,
	})
	swap := ""
	if rules.Swap {
		swap = of.groups.MemoryDir(of.tree.ClassPath(corev1.PodQOSBurstable)) // nobody else may
	}
	reader := signal.NewNode(signal.Paths{
		Memory: reading, MemoryRoot: of.groups.MemoryDir("/"), Allocatable: of.groups.MemoryDir(group), Swap: swap,
		NodeFS: c.RootDir, ImageFS: images, ContainerFS: images,
	})
	var limits *limit.Config
	if c.Resources.LocalStorage {
		limits = &limit.Config{
			Pods: pods, Usage: pods, Directories: []string{filepath.Join(c.RootDir, "pods"), c.LogDir}, Log: c.Log,
		}
	}
	return evictions{
		node: node, reader: reader,
		view: &pressure.View{
			Node: node, Reader: reader, Policy: policy, Stalls: func() []pressure.Stall { return stalls(of.groups, group) },
		},
		groups: of.groups, pods: group, stall: stall(c), limits: limits, log: c.Log,
	}, nil
}

// holding are the conditions of the node that hold.
func (e *evictions) holding() []corev1.NodeConditionType { return e.node.Holding() }

// figures are what the node has left of memory, for who tells of a kill.
func (e *evictions) figures() *oom.NodeFigures {
	readings, _ := e.reader.Memory()
	r, ok := readings[signal.MemoryAvailable]
	if !ok {
		return nil
	}
	f := &oom.NodeFigures{Time: r.Time, Available: r.Available}
	if p, err := cgroups.MachinePressure("memory"); err == nil {
		f.Pressure = &p
	}
	return f
}

// askPatience is how long a runtime is waited for that does not answer.
const askPatience = 5 * time.Second

// imageDir is where the runtime has its images, the root directory while it does not tell.
func imageDir(c *Config) string {
	ctx, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	r, err := c.Runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		c.Log.Warn("runtime does not tell where its images are", "error", err)
		return c.RootDir
	}
	for _, f := range r.GetImageFilesystems() {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir
		}
	}
	return c.RootDir
}

// run evicts pods until ctx ends. It begins when it is known which pods there are, with those that an agent before this
// one has begun with: somebody else would go for what they still have.
func (e *evictions) run(ctx context.Context, read <-chan struct{}) {
	select {
	case <-ctx.Done():
		return
	case <-read:
	}
	if err := e.node.Settle(ctx); err != nil && ctx.Err() == nil {
		e.log.Warn("an eviction that was begun is not known to have ended", "error", err)
	}
	w, err := kernel.New()
	if err != nil {
		e.log.Warn("the kernel does not tell what gets scarce", "error", err)
	}
	var heard listener
	if w != nil {
		defer w.Close()
		heard = listenKernel(w, e.groups, e.pods)
		if err := errors.Join(heard.errs...); err != nil {
			e.log.Warn("the kernel does not tell all of what gets scarce", "error", err)
		}
	}
	e.unmark()
	s := sensor.New(sensor.Config{
		Node: e.reader, Sources: heard.sources, Busy: heard.busy, Alarms: heard.alarms, Log: e.log,
	})
	var wait sync.WaitGroup
	defer e.node.Wait()
	defer wait.Wait()
	wait.Go(func() { s.Run(ctx) })
	c := eviction.Config{
		Policy: e.view.Policy, Sensor: s, Node: e.node,
		Exhaustion: signal.Exhaustion, Confirm: confirmMemory, Stall: e.stall,
		Before: e.node.Held(), Seen: e.node.Seen, Began: e.node.Began, Decided: e.node.Decided, Log: e.log,
	}
	if e.limits != nil {
		meter := e.meter(w)
		wait.Go(func() { meter.Run(ctx) })
		c.Limits = meter
	}
	eviction.NewManager(c).Run(ctx)
}

// meter counts what pods have on the disk, sooner when the kernel says that disks are busy, if it says so.
func (e *evictions) meter(w *kernel.Watcher) *limit.Meter {
	c := *e.limits
	if w != nil {
		if busy, err := w.PSI("/proc/pressure/io", stallTrigger()); err == nil {
			c.Sources = []limit.Source{busy}
		}
	}
	return limit.NewMeter(c)
}

// The node is about to stall when nothing could run in most of ten seconds, and so it went on for a while.
const (
	stallAbove = 60 // percent
	stallFor   = 2 * time.Second
)

// confirmMemory is longer than the kernel takes to count what it was asked for while somebody else was asking, and
// short beside what a pod needs to take what is left.
const confirmMemory = 10 * time.Millisecond

// stall is when a pod goes before the node stalls, where that was asked for.
func stall(c *Config) *eviction.Stall {
	if c.Evict.OOMPolicy != config.OOMEarly {
		return nil
	}
	return &eviction.Stall{Full: fullStall, Above: stallAbove, For: stallFor}
}

// fullStall is the percentage of the last ten seconds in which all waited for memory.
func fullStall() (float64, error) {
	p, err := cgroups.MachinePressure("memory")
	return p.Full.Avg10, err
}
