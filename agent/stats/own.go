package stats

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// Volumes are the metrics of volumes that are claimed, as kubelet has them on /metrics.
func (c *Collector) Volumes() prometheus.Collector {
	return c.measured(func(s *Snapshot, ch chan<- prometheus.Metric) {
		waits := newBudget(len(s.Pods))
		for i := range s.Pods {
			p, wait := &s.Pods[i], waits.next()
			for i := range p.Pod.Spec.Volumes {
				v := &p.Pod.Spec.Volumes[i]
				claim := claimOf(p.Pod, v)
				if claim == "" {
					continue
				}
				d := c.disk(p, wait).volumes[v.Name]
				if d.Known {
					volumeMetrics(d, ch, p.Pod.Namespace, claim)
				}
				if d.Abnormal != nil {
					healthMetric(*d.Abnormal, ch, p.Pod.Namespace, claim)
				}
			}
		}
	})
}

func healthMetric(abnormal bool, ch chan<- prometheus.Metric, namespace, claim string) {
	value := 0.0
	if abnormal {
		value = 1
	}
	newMetric("kubelet_volume_stats_health_status_abnormal", "Abnormal volume health status. The count is either 1 or 0. "+
		"1 indicates the volume is unhealthy, 0 indicates volume is healthy", "namespace", "persistentvolumeclaim").
		put(ch, value, namespace, claim)
}

func volumeMetrics(d Disk, ch chan<- prometheus.Metric, namespace, claim string) {
	for _, m := range []struct {
		name, help string
		v          uint64
	}{
		{"kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", d.Capacity},
		{"kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", d.Available},
		{"kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", d.Used},
		{"kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", d.Inodes},
		{"kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", d.InodesFree},
		{"kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", d.InodesUsed},
	} {
		newMetric(m.name, m.help, "namespace", "persistentvolumeclaim").put(ch, float64(m.v), namespace, claim)
	}
}

// Kernel is what kubelet has no name for: the kernel's own view of memory, and what measuring costs.
func (c *Collector) Kernel() prometheus.Collector {
	return c.measured(func(s *Snapshot, ch chan<- prometheus.Metric) {
		newMetric("berth_node_memory_available_bytes", "What the kernel says could be used without swapping (MemAvailable).").
			put(ch, float64(s.Node.Available))
		newMetric("berth_stats_measure_seconds", "Time that the last measurement of all groups took.").put(ch, s.took.Seconds())
	})
}

// measured collects from a measurement.
func (c *Collector) measured(tell func(*Snapshot, chan<- prometheus.Metric)) prometheus.Collector {
	return collector(func(ch chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		if s, err := c.Snapshot(ctx, false); err == nil {
			tell(s, ch)
		}
	})
}
