package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/probes"
)

// Probes are those of /metrics/probes, by kubelet's names.
type Probes struct {
	total *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

// NewProbes has counted nothing yet.
func NewProbes() *Probes {
	return &Probes{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds", Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
}

// Registry is the page.
func (m *Probes) Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(m.total, m.took)
	return r
}

// Probed counts one answer of a probe.
func (m *Probes) Probed(
	pod *corev1.Pod, container string, kind probes.Kind, outcome probes.Outcome, took time.Duration,
) {
	result := map[probes.Outcome]string{probes.Success: "successful", probes.Failure: "failed"}[outcome]
	if result == "" {
		result = "unknown"
	}
	m.total.WithLabelValues(string(kind), result, container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	m.took.WithLabelValues(string(kind), container, pod.Name, pod.Namespace).Observe(took.Seconds())
}

// ProbesEnded forgets a container that is not asked any more: what is gone has no metrics. A counter that starts over
// when the container does is what counters may do.
func (m *Probes) ProbesEnded(pod *corev1.Pod, container string) {
	m.total.DeletePartialMatch(prometheus.Labels{"container": container, "pod_uid": string(pod.UID)})
	m.took.DeletePartialMatch(prometheus.Labels{"container": container, "pod": pod.Name, "namespace": pod.Namespace})
}
