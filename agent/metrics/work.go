package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-node/berth/agent/intercept"
)

// Work are those of the agent's own work, by kubelet's names and with its buckets.
type Work struct {
	operations, failures *prometheus.CounterVec
	operated             *prometheus.HistogramVec
	relisted, interval   prometheus.Histogram

	started   prometheus.Histogram
	worked    *prometheus.HistogramVec
	inCgroups *prometheus.HistogramVec

	mu   sync.Mutex
	last time.Time // when the runtime's sandboxes were listed last
}

// NewWork has counted nothing yet.
func NewWork() *Work {
	const operation = "operation_type"
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	var usual []float64 // nil: Prometheus's own
	return &Work{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total", Help: "Cumulative number of runtime operations by operation type.",
		}, []string{operation}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total", Help: "Cumulative number of runtime operation errors by operation type.",
		}, []string{operation}),
		operated: prometheus.NewHistogramVec(histogram("kubelet_runtime_operations_duration_seconds",
			"Duration in seconds of runtime operations. Broken down by operation type.", prometheus.ExponentialBuckets(.005, 2.5, 14)), []string{operation}),
		relisted: prometheus.NewHistogram(histogram("kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", usual)),
		interval: prometheus.NewHistogram(histogram("kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", usual)),
		started: prometheus.NewHistogram(histogram("kubelet_pod_start_duration_seconds",
			"Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
			[]float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600})),
		worked: prometheus.NewHistogramVec(histogram("kubelet_pod_worker_duration_seconds",
			"Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", usual), []string{operation}),
		inCgroups: prometheus.NewHistogramVec(histogram("kubelet_cgroup_manager_duration_seconds",
			"Duration in seconds for cgroup manager operations. Broken down by method.", usual), []string{operation}),
	}
}

// Collectors are all of them.
func (m *Work) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.operations, m.failures, m.operated, m.relisted, m.interval, m.started, m.worked, m.inCgroups}
}

// Started implements the pods' observer.
func (m *Work) Started(took time.Duration) { m.started.Observe(took.Seconds()) }

// Stepped implements the pods' observer.
func (m *Work) Stepped(starting bool, took time.Duration) {
	what := "sync"
	if starting {
		what = "create"
	}
	m.worked.WithLabelValues(what).Observe(took.Seconds())
}

// Call counts and times a call of the runtime, as an [intercept.Interceptor].
func (m *Work) Call(_ context.Context, c intercept.Call, do func() error) error {
	began := time.Now()
	err := do()
	m.called(c.Operation, began, time.Since(began).Seconds(), err)
	return err
}

// Group times what is done to the groups of pods, as an [intercept.Interceptor].
func (m *Work) Group(_ context.Context, c intercept.Call, do func() error) error {
	began := time.Now()
	err := do()
	m.inCgroups.WithLabelValues(c.Operation).Observe(time.Since(began).Seconds())
	return err
}

// called counts a call of the runtime that began then and took so many seconds.
func (m *Work) called(operation string, began time.Time, took float64, err error) {
	m.operations.WithLabelValues(operation).Inc()
	m.operated.WithLabelValues(operation).Observe(took)
	failures := m.failures.WithLabelValues(operation) // there from the start: a rate needs the 0 before the first
	if err != nil {
		failures.Inc()
	}
	if operation == intercept.ListSandboxes {
		m.relisted.Observe(took)
		m.mu.Lock()
		before := m.last
		m.last = began
		m.mu.Unlock()
		if !before.IsZero() && began.After(before) {
			m.interval.Observe(began.Sub(before).Seconds())
		}
	}
}
