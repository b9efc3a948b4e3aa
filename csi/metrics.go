package csi

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics have kubelet's names, labels and buckets.
type metrics struct{ calls *prometheus.HistogramVec }

func newMetrics() *metrics {
	return &metrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "csi_operations_seconds", Help: "Time that calls of CSI drivers take, by the gRPC code of their answer, in seconds.",
		Buckets:     []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		ConstLabels: prometheus.Labels{"migrated": "false"}, // no volume plugin of the tree is done by a driver here
	}, []string{"driver_name", "method_name", "grpc_status_code"})}
}

func (m *metrics) observe(driver, method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(driver, method, code.String()).Observe(took.Seconds())
}

// Collectors are what metrics are gathered from.
func (d *Drivers) Collectors() []prometheus.Collector {
	return []prometheus.Collector{d.metrics.calls}
}
