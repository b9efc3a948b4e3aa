package device

import "github.com/prometheus/client_golang/prometheus"

// metrics have kubelet's names.
type metrics struct {
	registrations *prometheus.CounterVec
	allocations   *prometheus.HistogramVec
}

func newMetrics() *metrics {
	return &metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_device_plugin_registration_total", Help: "Registrations of device plugins.",
		}, []string{"resource_name"}),
		allocations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_device_plugin_alloc_duration_seconds", Help: "Time that device plugins take to allocate devices, in seconds.",
			Buckets: prometheus.DefBuckets,
		}, []string{"resource_name"}),
	}
}

// Collectors are what metrics are gathered from.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.metrics.registrations, m.metrics.allocations}
}
