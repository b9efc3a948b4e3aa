package dra

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have kubelet's names.
type metrics struct {
	operations *prometheus.HistogramVec
	calls      *prometheus.HistogramVec
	inUse      prometheus.Collector
}

// anyDriver stands for all of them: a claim of two drivers counts once.
const anyDriver = "<any>"

func newMetrics(claims *ledger) *metrics {
	return &metrics{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dra_operations_duration_seconds", Help: "Time that preparing or unpreparing all claims of a pod takes, in seconds.",
			Buckets: prometheus.DefBuckets,
		}, []string{"operation_name", "is_error"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dra_grpc_operations_duration_seconds", Help: "Time that calls of DRA drivers take, in seconds.",
			Buckets: prometheus.DefBuckets,
		}, []string{"driver_name", "method_name", "grpc_status_code"}),
		inUse: &inUse{claims, prometheus.NewDesc("dra_resource_claims_in_use",
			"ResourceClaims that pods of the node have, by driver and in all.", []string{"driver_name"}, nil)},
	}
}

// Collectors are what metrics are gathered from.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.metrics.operations, m.metrics.calls, m.metrics.inUse}
}

func (m *Manager) measure(operation string, began time.Time, err *error) {
	m.metrics.operations.WithLabelValues(operation, strconv.FormatBool(*err != nil)).Observe(time.Since(began).Seconds())
}

// inUse counts claims when somebody asks.
type inUse struct {
	claims *ledger
	desc   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (u *inUse) Describe(out chan<- *prometheus.Desc) { out <- u.desc }

// Collect implements prometheus.Collector.
func (u *inUse) Collect(out chan<- prometheus.Metric) {
	claims := u.claims.now()
	counts := map[string]int{anyDriver: len(claims)}
	for _, c := range claims {
		for _, name := range c.drivers() {
			counts[name]++
		}
	}
	for name, n := range counts {
		out <- prometheus.MustNewConstMetric(u.desc, prometheus.GaugeValue, float64(n), name)
	}
}
