package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/cgroups/kube"
)

// pinsFile has what containers have of their own, in the root directory.
const pinsFile = "pinned.json"

// openPins returns nil when nothing is pinned and nothing has been.
func openPins(c *Config, div config.Division, devices pinning.Devices, groups kube.Options) (*pinning.Manager, error) {
	p, err := pinningConfig(&c.Config, div)
	if err != nil {
		return nil, err
	}
	p.File = filepath.Join(c.RootDir, pinsFile)
	if !p.Enabled() {
		if _, err := os.Stat(p.File); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	}
	if err := makeRoot(c); err != nil {
		return nil, err
	}
	if p.Machine, err = topology.Read("/"); err != nil {
		return nil, err
	}
	p.Runtime, p.Devices, p.Groups, p.Log = c.Runtime, devices, groups, c.Log
	return pinning.New(p)
}

// pinningConfig is what is to be pinned on a node that is divided so. Without a list of the node's own CPUs they are as
// many as are reserved for the system and for daemons together, whole ones, as with kubelet.
func pinningConfig(c *config.Config, div config.Division) (pinning.Config, error) {
	p, err := c.Managers.Pinning()
	if err != nil {
		return p, err
	}
	if p.StaticMemory && len(p.ReservedMemory) > 0 {
		if err := div.CheckReservedMemory(p.ReservedMemory); err != nil {
			return p, err
		}
	}
	p.ReservedCPUs = int((div.System.Cpu().MilliValue() + div.Kube.Cpu().MilliValue() + 999) / 1000)
	return p, nil
}

// givePods says what pods are given of the node for themselves, and what their groups are then.
func (a *Agent) givePods(objects *object.Stores) (pod.Cgroups, pod.Given) {
	pins, devices := a.managers.pins, pluginDevices{a.managers.devices, a.managers.pins, a.member.offered}
	claims := podClaims{a.managers.claims, objects}
	if pins == nil {
		return a.tree, pod.Given{Resources: []pod.NodeResource{claims, a.managers.csi, devices}, Extended: devices.extended}
	}
	groups := &pinnedGroups{a.tree, a.withoutQuota(), pins.Exclusive}
	return groups, pod.Given{
		Resources: []pod.NodeResource{claims, a.managers.csi, pinnedCPUs{pins, groups, a.log}, devices},
		Extended:  devices.extended, Pins: pins,
	}
}

// pinnedCPUs are CPUs and memory nodes of containers' own.
type pinnedCPUs struct {
	pins   *pinning.Manager
	groups *pinnedGroups
	log    *slog.Logger
}

var _ pod.NodeResource = pinnedCPUs{}

// Name implements [pod.NodeResource].
func (pinnedCPUs) Name() string { return "cpus" }

// Concerns implements [pod.NodeResource].
func (c pinnedCPUs) Concerns(p *corev1.Pod) bool { return c.pins.Exclusive(p.UID) }

// Admit gives the pod its CPUs. The group of one that runs already has a quota, or none, as the agent before had it.
func (c pinnedCPUs) Admit(p *corev1.Pod, ran bool) error {
	err := c.pins.Admit(p)
	if ran {
		if err := c.groups.SettleQuota(p); err != nil {
			c.log.Warn("the pod's CPU quota is as the agent before had it", "pod", p.Namespace+"/"+p.Name, "uid", string(p.UID),
				"error", err)
		}
	}
	return err
}

// Prepare implements [pod.NodeResource].
func (pinnedCPUs) Prepare(context.Context, *corev1.Pod) error { return nil }

// Inject says where the container runs. Nobody else is to be on its CPUs when it begins.
func (c pinnedCPUs) Inject(ctx context.Context, p *corev1.Pod, of *corev1.Container, into *spec.Injection) error {
	into.Pin = c.pins.Pin(p.UID, of.Name)
	if !into.Pin.Exclusive {
		return nil
	}
	return c.pins.Sync(ctx)
}

// Health implements [pod.NodeResource].
func (pinnedCPUs) Health(*corev1.Pod) map[string][]corev1.ResourceStatus { return nil }

// Changes implements [pod.NodeResource].
func (pinnedCPUs) Changes() (changed, freed <-chan struct{}) { return nil, nil }

// Release implements [pod.NodeResource].
func (c pinnedCPUs) Release(_ context.Context, uid types.UID) error { return c.pins.Release(uid) }

// Synced implements [pod.NodeResource].
func (c pinnedCPUs) Synced(here func(types.UID) bool) error { return c.pins.Synced(here) }

func (a *Agent) withoutQuota() *kube.Tree {
	o := a.tree.Options()
	o.NoCPUQuota = true
	return a.tree.WithOptions(o)
}

// pinnedGroups gives pods no CPU quota that have CPUs of their own: that of the pod would stop containers that have
// none.
type pinnedGroups struct {
	limited   *kube.Tree
	unlimited *kube.Tree
	exclusive func(types.UID) bool
}

var _ pod.Cgroups = (*pinnedGroups)(nil)

// of is the tree with the values that a pod's group has.
func (g *pinnedGroups) of(uid types.UID) *kube.Tree {
	if g.exclusive(uid) {
		return g.unlimited
	}
	return g.limited
}

// PodPath implements [pod.Cgroups].
func (g *pinnedGroups) PodPath(p *corev1.Pod) string { return g.limited.PodPath(p) }

// RemovePod implements [pod.Cgroups].
func (g *pinnedGroups) RemovePod(ctx context.Context, uid types.UID, path string) error {
	return g.limited.RemovePod(ctx, uid, path)
}

// KillIn implements [pod.Cgroups].
func (g *pinnedGroups) KillIn(ctx context.Context, uid types.UID, ids []string) error {
	return g.limited.KillIn(ctx, uid, ids)
}

// EnsurePod makes the pod's group.
func (g *pinnedGroups) EnsurePod(p *corev1.Pod) (string, error) { return g.of(p.UID).EnsurePod(p) }

// SettleQuota is called when an agent that pins has come to a pod that runs, or one that does not any more.
func (g *pinnedGroups) SettleQuota(p *corev1.Pod) error { return g.of(p.UID).SettleQuota(p) }

// ResizePod changes the limits of a pod that runs.
func (g *pinnedGroups) ResizePod(p *corev1.Pod, ids map[string]string, write func(string) error) error {
	return g.of(p.UID).ResizePod(p, ids, write)
}

// pinMetrics tells what is pinned, by kubelet's names.
type pinMetrics struct{ pins *pinning.Manager }

func pinDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_"+name, help, nil, nil)
}

// Describe implements prometheus.Collector. What it has depends on nothing, so that it is told by collecting.
func (m *pinMetrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *pinMetrics) Collect(ch chan<- prometheus.Metric) {
	shared, exclusive, n := m.pins.Usage()
	for _, one := range []struct {
		name, help string
		kind       prometheus.ValueType
		value      int64
	}{
		{
			"cpu_manager_shared_pool_size_millicores", "Size of the shared CPUs in thousandths of a core.",
			prometheus.GaugeValue, int64(shared) * 1000,
		},
		{
			"cpu_manager_exclusive_cpu_allocation_count", "CPUs that containers have for themselves.", prometheus.GaugeValue,
			int64(exclusive),
		},
		{
			"cpu_manager_pinning_requests_total", "Containers that asked for CPUs of their own.", prometheus.CounterValue,
			n.CPURequests,
		},
		{
			"cpu_manager_pinning_errors_total", "Pods refused for want of CPUs of their own.", prometheus.CounterValue,
			n.CPUErrors,
		},
		{
			"memory_manager_pinning_requests_total", "Containers that asked for memory of NUMA nodes.", prometheus.CounterValue,
			n.MemoryRequests,
		},
		{
			"memory_manager_pinning_errors_total", "Pods refused for want of memory of NUMA nodes.", prometheus.CounterValue,
			n.MemoryErrors,
		},
		{
			"topology_manager_admission_requests_total", "Pods whose resources were to be aligned.", prometheus.CounterValue,
			n.AlignRequests,
		},
		{
			"topology_manager_admission_errors_total", "Pods refused because their resources cannot be aligned.",
			prometheus.CounterValue, n.AlignErrors,
		},
	} {
		ch <- prometheus.MustNewConstMetric(pinDesc(one.name, one.help), one.kind, float64(one.value))
	}
}
