package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/metrics"
	"github.com/berth-node/berth/agent/stats"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// collector measures what the pods use.
func (a *Agent) collector(h *cgroups.Hierarchy, memory int64) *stats.Collector {
	c := stats.Config{
		Pods: a.pods.List, Groups: h, PodPath: a.tree.PodPath, Runtime: a.cfg.Runtime, Layers: a.cfg.Layers,
		NodeName: a.cfg.NodeName, Memory: memory, RootDir: a.cfg.RootDir, LogDir: a.cfg.LogDir, Log: a.log,
		Volume: a.managers.csi.disk,
	}
	for _, q := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		c.Classes = append(c.Classes, kube.QoSPath(a.cfg.CgroupRoot, q))
	}
	return stats.New(c)
}

// metrics are the pages of metrics by their paths.
func (a *Agent) metrics() map[string]prometheus.Gatherer {
	return map[string]prometheus.Gatherer{
		"/metrics": a.ownMetrics(), "/metrics/resource": a.stats.Resource(),
		"/metrics/cadvisor": a.stats.Cadvisor(a.cfg.Version), "/metrics/probes": a.counted.probes.Registry(),
	}
}

// ownMetrics is what /metrics says. It is gathered when it is asked for: the state has its owners already.
func (a *Agent) ownMetrics() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		metrics.Pods(a.pods.List), a.stats.Volumes(), a.stats.Kernel(), a.room.images.Metrics(),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_source_missed_total", Help: "Changes of manifests that a rescan found and no notification had told of.",
		}, func() float64 { return float64(a.manifests.source.Missed()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_manifests_refused", Help: "Manifests that have errors.",
		}, func() float64 {
			n := 0
			for _, p := range a.manifests.source.Problems() {
				if len(p.Errors) > 0 {
					n++
				}
			}
			return float64(n)
		}),
	)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_info", Help: "Always 1.",
		ConstLabels: prometheus.Labels{"version": a.cfg.Version, "node": a.cfg.NodeName},
	})
	info.Set(1)
	name := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubelet_node_name", Help: "The node's name. The count is always 1.",
		ConstLabels: prometheus.Labels{"node": a.cfg.NodeName},
	})
	name.Set(1)
	r.MustRegister(info, name, metrics.Build())
	r.MustRegister(a.counted.work.Collectors()...)
	r.MustRegister(a.managers.devices.Collectors()...)
	r.MustRegister(a.managers.claims.Collectors()...)
	r.MustRegister(a.managers.csi.drivers.Collectors()...)
	r.MustRegister(a.evictions.node.Collectors()...)
	if m := a.member; m != nil {
		r.MustRegister(m.counted.Collectors()...)
		r.MustRegister(m.requests.Collectors(func() time.Time { return m.client.State().NotAfter })...)
		r.MustRegister(m.counted.Waiting(m.statuses.Pending, m.statuses.Mirrors)...)
	}
	if a.managers.pins != nil {
		r.MustRegister(&pinMetrics{a.managers.pins})
	}
	return r
}
