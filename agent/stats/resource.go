package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-node/berth/cgroups"
)

// scrapeTimeout is how long a measurement may take. It takes milliseconds.
const scrapeTimeout = 10 * time.Second

// collector makes a prometheus.Collector of a function. It describes nothing beforehand, as what there is depends on the pods.
type collector func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f collector) Collect(ch chan<- prometheus.Metric) { f(ch) }

func gatherer(f collector) prometheus.Gatherer {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(f)
	return r
}

// Resource is /metrics/resource: what metrics-server reads.
func (c *Collector) Resource() prometheus.Gatherer {
	return gatherer(func(ch chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		s, err := c.Snapshot(ctx, false)
		failed := 0.0
		if err != nil {
			failed = 1
		} else {
			resource(s, ch)
		}
		newMetric("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", prometheus.GaugeValue).
			put(ch, time.Time{}, failed)
	})
}

// metric is one that is put with different labels.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(name, help string, kind prometheus.ValueType, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), kind}
}

// put sends a value, with the time of its measurement unless that is zero.
func (m metric) put(ch chan<- prometheus.Metric, t time.Time, v float64, labels ...string) {
	one, err := prometheus.NewConstMetric(m.desc, m.kind, v, labels...)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(m.desc, err)
		return
	}
	if !t.IsZero() {
		one = prometheus.NewMetricWithTimestamp(t, one)
	}
	ch <- one
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

func resource(s *Snapshot, ch chan<- prometheus.Metric) {
	n := &s.Node
	newMetric("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds", counter).
		put(ch, n.Usage.Time, seconds(n.Usage.CPU.UsageNs))
	newMetric("node_memory_working_set_bytes", "Current working set of the node in bytes", gauge).
		put(ch, n.Usage.Time, float64(n.Usage.Memory.WorkingSet))
	newMetric("node_swap_usage_bytes", "Current swap usage of the node in bytes", gauge).put(ch, n.Usage.Time, float64(n.SwapUsed))

	own := []string{"container", "namespace", "pod"}
	cpu := newMetric("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", counter, own...)
	memory := newMetric("container_memory_working_set_bytes", "Current working set of the container in bytes", gauge, own...)
	swap := newMetric("container_swap_usage_bytes", "Current amount of the container swap usage in bytes", gauge, own...)
	swapLimit := newMetric("container_swap_limit_bytes", "Current amount of the container swap limit in bytes", gauge, own...)
	started := newMetric("container_start_time_seconds", "Start time of the container since unix epoch in seconds", gauge, own...)
	podCPU := newMetric("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", counter, "namespace", "pod")
	podMemory := newMetric("pod_memory_working_set_bytes", "Current working set of the pod in bytes", gauge, "namespace", "pod")
	podSwap := newMetric("pod_swap_usage_bytes", "Current amount of the pod swap usage in bytes", gauge, "namespace", "pod")
	for i := range s.Pods {
		p := &s.Pods[i]
		ns, name := p.Pod.Namespace, p.Pod.Name
		if p.Known {
			podCPU.put(ch, p.Usage.Time, seconds(p.Usage.CPU.UsageNs), ns, name)
			podMemory.put(ch, p.Usage.Time, float64(p.Usage.Memory.WorkingSet), ns, name)
			podSwap.put(ch, p.Usage.Time, float64(p.Usage.Memory.Swap), ns, name)
		}
		for j := range p.Containers {
			r := &p.Containers[j]
			started.put(ch, time.Time{}, float64(r.Started.UnixNano())/1e9, r.Name, ns, name)
			if !r.Known {
				continue
			}
			cpu.put(ch, r.Usage.Time, seconds(r.Usage.CPU.UsageNs), r.Name, ns, name)
			memory.put(ch, r.Usage.Time, float64(r.Usage.Memory.WorkingSet), r.Name, ns, name)
			swap.put(ch, r.Usage.Time, float64(r.Usage.Memory.Swap), r.Name, ns, name)
			if l := r.Usage.Memory.SwapLimit; l != cgroups.NoLimit {
				swapLimit.put(ch, r.Usage.Time, float64(l), r.Name, ns, name)
			}
		}
	}
}
