package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
)

// metrics is what /metrics says. It is gathered when it is asked for: the state has its owners already.
func (a *Agent) metrics() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		&podMetrics{list: a.pods.List},
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "berth_source_missed_total", Help: "Changes of manifests that a rescan found and no notification had told of.",
		}, func() float64 { return float64(a.source.Missed()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_manifests_refused", Help: "Manifests that have errors.",
		}, func() float64 {
			n := 0
			for _, p := range a.source.Problems() {
				if len(p.Errors) > 0 {
					n++
				}
			}
			return float64(n)
		}),
	)
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_info", Help: "Always 1.", ConstLabels: prometheus.Labels{"version": a.cfg.Version, "node": a.cfg.NodeName}})
	info.Set(1)
	r.MustRegister(info)
	return r
}

// podMetrics counts the pods and their containers.
type podMetrics struct{ list func() []*corev1.Pod }

var (
	podsDesc     = prometheus.NewDesc("berth_pods", "Pods by phase.", []string{"phase"}, nil)
	runningDesc  = prometheus.NewDesc("berth_containers_running", "Containers that run.", nil, nil)
	restartsDesc = prometheus.NewDesc("berth_container_restarts_total", "Restarts of a container.", []string{"namespace", "pod", "container"}, nil)
	readyDesc    = prometheus.NewDesc("berth_pods_ready", "Pods that are ready.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *podMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- podsDesc
	ch <- runningDesc
	ch <- restartsDesc
	ch <- readyDesc
}

// Collect implements prometheus.Collector.
func (m *podMetrics) Collect(ch chan<- prometheus.Metric) {
	phases := map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodRunning: 0, corev1.PodSucceeded: 0, corev1.PodFailed: 0}
	running, ready := 0, 0
	for _, p := range m.list() {
		phases[p.Status.Phase]++
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, s := range list {
				if s.State.Running != nil {
					running++
				}
				ch <- prometheus.MustNewConstMetric(restartsDesc, prometheus.CounterValue, float64(s.RestartCount), p.Namespace, p.Name, s.Name)
			}
		}
	}
	for phase, n := range phases {
		ch <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(n), string(phase))
	}
	ch <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(running))
	ch <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, float64(ready))
}
