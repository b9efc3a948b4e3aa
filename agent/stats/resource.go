package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-node/berth/cgroups"
)

// scrapeTimeout is how long a measurement may take. It takes milliseconds.
const scrapeTimeout = 10 * time.Second

// collector makes a prometheus.Collector of a function. It describes nothing beforehand, as what there is depends on
// the pods.
type collector func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f collector) Collect(ch chan<- prometheus.Metric) { f(ch) }

// Resource is /metrics/resource: what metrics-server reads.
func (c *Collector) Resource() prometheus.Gatherer {
	return gatherer(func(to *page) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		s, err := c.snapshot(ctx, false, true)
		failed := 0.0
		if err != nil {
			failed = 1
		} else {
			resource(s, to)
		}
		to.family("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", gauge).put(time.Time{}, failed)
	})
}

// metric is a gauge that is put with different labels.
type metric struct{ desc *prometheus.Desc }

func newMetric(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil)}
}

// put sends a value.
func (m metric) put(ch chan<- prometheus.Metric, v float64, labels ...string) {
	one, err := prometheus.NewConstMetric(m.desc, gauge, v, labels...)
	if err != nil {
		one = prometheus.NewInvalidMetric(m.desc, err)
	}
	ch <- one
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

func resource(s *Snapshot, to *page) {
	n := &s.Node
	to.family("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", counter).
		put(n.Usage.Time, seconds(n.Usage.CPU.UsageNs))
	to.family("node_memory_working_set_bytes", "Current working set of the node in bytes", gauge).
		put(n.Usage.Time, float64(n.Usage.Memory.WorkingSet))
	to.family("node_swap_usage_bytes", "Current swap usage of the node in bytes", gauge).put(n.Usage.Time, float64(n.SwapUsed))

	own := []string{"container", "namespace", "pod"}
	cpu := to.family("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", counter, own...)
	memory := to.family("container_memory_working_set_bytes", "Current working set of the container in bytes", gauge, own...)
	swap := to.family("container_swap_usage_bytes", "Current amount of the container swap usage in bytes", gauge, own...)
	swapLimit := to.family("container_swap_limit_bytes", "Current amount of the container swap limit in bytes", gauge, own...)
	started := to.family("container_start_time_seconds", "Start time of the container since unix epoch in seconds", gauge, own...)
	podCPU := to.family("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", counter, "namespace", "pod")
	podMemory := to.family("pod_memory_working_set_bytes", "Current working set of the pod in bytes", gauge, "namespace", "pod")
	podSwap := to.family("pod_swap_usage_bytes", "Current amount of the pod swap usage in bytes", gauge, "namespace", "pod")
	for i := range s.Pods {
		p := &s.Pods[i]
		ns, name := p.Pod.Namespace, p.Pod.Name
		if p.Known {
			podCPU.put(p.Usage.Time, seconds(p.Usage.CPU.UsageNs), ns, name)
			podMemory.put(p.Usage.Time, float64(p.Usage.Memory.WorkingSet), ns, name)
			podSwap.put(p.Usage.Time, float64(p.Usage.Memory.Swap), ns, name)
		}
		for j := range p.Containers {
			r := &p.Containers[j]
			started.put(time.Time{}, float64(r.Started.UnixNano())/1e9, r.Name, ns, name)
			if !r.Known {
				continue
			}
			cpu.put(r.Usage.Time, seconds(r.Usage.CPU.UsageNs), r.Name, ns, name)
			memory.put(r.Usage.Time, float64(r.Usage.Memory.WorkingSet), r.Name, ns, name)
			swap.put(r.Usage.Time, float64(r.Usage.Memory.Swap), r.Name, ns, name)
			if l := r.Usage.Memory.SwapLimit; l != cgroups.NoLimit {
				swapLimit.put(r.Usage.Time, float64(l), r.Name, ns, name)
			}
		}
	}
}
