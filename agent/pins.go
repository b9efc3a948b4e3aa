package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/cgroups/kube"
)

// pinsFile has what containers have of their own, in the root directory.
const pinsFile = "pinned.json"

// openPins returns nil when nothing is pinned and nothing has been.
func openPins(c *Config, div config.Division, devices pinning.Devices) (*pinning.Manager, error) {
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
	if err := os.MkdirAll(c.RootDir, 0o711); err != nil {
		return nil, fmt.Errorf("make root directory: %w", err)
	}
	if p.Machine, err = topology.Read("/"); err != nil {
		return nil, err
	}
	p.Runtime, p.Devices, p.Log = c.Runtime, devices, c.Log
	return pinning.New(p)
}

// pinningConfig is what is to be pinned on a node that is divided so. Without a list of the node's own CPUs they are as many as are
// reserved for the system and for daemons together, whole ones, as with kubelet.
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

// podGroups are the groups of the pods.
func (a *Agent) podGroups() pod.Cgroups {
	if a.pins == nil {
		return a.tree
	}
	return &pinnedGroups{a.tree, a.withoutQuota(), a.pins.Exclusive}
}

func (a *Agent) withoutQuota() *kube.Tree {
	o := a.tree.Options()
	o.NoCPUQuota = true
	return a.tree.WithOptions(o)
}

// pinnedGroups gives pods no CPU quota that have CPUs of their own: that of the pod would stop containers that have none.
type pinnedGroups struct {
	*kube.Tree
	unlimited *kube.Tree
	exclusive func(types.UID) bool
}

// EnsurePod makes the pod's group.
func (g *pinnedGroups) EnsurePod(p *corev1.Pod) (string, error) {
	if g.exclusive(p.UID) {
		return g.unlimited.EnsurePod(p)
	}
	return g.Tree.EnsurePod(p)
}

// SettleQuota is called when an agent that pins has come to a pod that runs, or one that does not any more.
func (g *pinnedGroups) SettleQuota(p *corev1.Pod) error {
	if g.exclusive(p.UID) {
		return g.unlimited.SettleQuota(p)
	}
	return g.Tree.SettleQuota(p)
}

// ResizePod changes the limits of a pod that runs.
func (g *pinnedGroups) ResizePod(p *corev1.Pod, ids map[string]string, write func(string) error) error {
	if g.exclusive(p.UID) {
		return g.unlimited.ResizePod(p, ids, write)
	}
	return g.Tree.ResizePod(p, ids, write)
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
		{"cpu_manager_shared_pool_size_millicores", "Size of the shared CPUs in thousandths of a core.", prometheus.GaugeValue, int64(shared) * 1000},
		{"cpu_manager_exclusive_cpu_allocation_count", "CPUs that containers have for themselves.", prometheus.GaugeValue, int64(exclusive)},
		{"cpu_manager_pinning_requests_total", "Containers that asked for CPUs of their own.", prometheus.CounterValue, n.CPURequests},
		{"cpu_manager_pinning_errors_total", "Pods refused for want of CPUs of their own.", prometheus.CounterValue, n.CPUErrors},
		{"memory_manager_pinning_requests_total", "Containers that asked for memory of NUMA nodes.", prometheus.CounterValue, n.MemoryRequests},
		{"memory_manager_pinning_errors_total", "Pods refused for want of memory of NUMA nodes.", prometheus.CounterValue, n.MemoryErrors},
		{"topology_manager_admission_requests_total", "Pods whose resources were to be aligned.", prometheus.CounterValue, n.AlignRequests},
		{"topology_manager_admission_errors_total", "Pods refused because their resources cannot be aligned.", prometheus.CounterValue, n.AlignErrors},
	} {
		ch <- prometheus.MustNewConstMetric(pinDesc(one.name, one.help), one.kind, float64(one.value))
	}
}
