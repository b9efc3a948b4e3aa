package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Statuses are those of what an API server is told of pods, by kubelet's names where it has them.
type Statuses struct {
	writes, failures *prometheus.CounterVec
	took             prometheus.Histogram
}

// NewStatuses has counted nothing yet.
func NewStatuses() *Statuses {
	verb := []string{"verb"}
	return &Statuses{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_status_writes_total", Help: "Calls that change a pod at the API server, by verb.",
		}, verb),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_status_writes_failed_total", Help: "Those of them that have failed, most of which are tried again.",
		}, verb),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kubelet_pod_status_sync_duration_seconds",
			Help: "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until " +
				"the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
			Buckets: []float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60},
		}),
	}
}

// Collectors are all of them.
func (s *Statuses) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.writes, s.failures, s.took}
}

// Waiting are those of what the API server does not have yet, and of static pods that are to be shown there.
func (s *Statuses) Waiting(pending, mirrors func() int) []prometheus.Collector {
	gauge := func(name, help string, of func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of()) })
	}
	return []prometheus.Collector{
		gauge("berth_status_pending", "Pods of which the API server does not have what the node says.", pending),
		gauge("kubelet_mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)", mirrors),
	}
}

// StatusWrite implements the writer's observer.
func (s *Statuses) StatusWrite(verb string, err error) {
	s.writes.WithLabelValues(verb).Inc()
	failures := s.failures.WithLabelValues(verb) // there from the start: a rate needs the 0 before the first
	if err != nil {
		failures.Inc()
	}
}

// StatusWritten implements the writer's observer.
func (s *Statuses) StatusWritten(took time.Duration) { s.took.Observe(took.Seconds()) }
