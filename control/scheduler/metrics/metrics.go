// Package metrics are the numbers that the scheduler tells of itself, by Kubernetes' names.
package metrics

import (
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
)

const subsystem = "scheduler"

// What an attempt has come to.
const (
	Scheduled     = "scheduled"
	Unschedulable = "unschedulable"
	Error         = "error"
)

// manyAttempts is from how many on attempts of a pod are not told apart.
const manyAttempts = 15

// Counts says how many pods are where in the queue.
type Counts = func() (active, backoff, unschedulable, gated int)

// Metrics are those of all schedulers that a process runs, one after the other. Nil takes what it is told, and forgets
// it.
type Metrics struct {
	metrics.BaseStableCollector

	attempts     *metrics.CounterVec
	attempt, sli *metrics.HistogramVec
	tries        *metrics.Histogram
	preemptions  *metrics.Counter
	victims      *metrics.Histogram
	points       *metrics.HistogramVec
	incoming     *metrics.CounterVec
	batches      *metrics.CounterVec
	pending      *metrics.Desc
	counts       atomic.Pointer[Counts]
}

// Registry is where metrics are made known.
type Registry interface {
	MustRegister(all ...metrics.Registerable)
	CustomMustRegister(all ...metrics.StableCollector)
}

// New makes metrics and makes them known, which can be done once for each registry.
func New(r Registry) *Metrics {
	m := &Metrics{
		attempts: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "schedule_attempts_total", StabilityLevel: metrics.STABLE,
			Help: "Attempts to schedule pods, by what has come of them.",
		}, []string{"result", "profile"}),
		attempt: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "scheduling_attempt_duration_seconds", StabilityLevel: metrics.STABLE,
			Buckets: metrics.ExponentialBuckets(0.001, 2, 15), Help: "How long an attempt takes, with the binding.",
		}, []string{"result", "profile"}),
		sli: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "pod_scheduling_sli_duration_seconds", StabilityLevel: metrics.BETA,
			Buckets: metrics.ExponentialBuckets(0.01, 2, 20), Help: "From the first attempt to schedule a pod to its binding.",
		}, []string{"attempts"}),
		tries: metrics.NewHistogram(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "pod_scheduling_attempts", StabilityLevel: metrics.STABLE,
			Buckets: metrics.ExponentialBuckets(1, 2, 5), Help: "How many attempts it took to schedule a pod.",
		}),
		preemptions: metrics.NewCounter(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "preemption_attempts_total", StabilityLevel: metrics.STABLE,
			Help: "How often room was to be made by ending pods.",
		}),
		victims: metrics.NewHistogram(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "preemption_victims", StabilityLevel: metrics.STABLE,
			Buckets: metrics.ExponentialBuckets(1, 2, 7), Help: "How many pods are ended to make room once.",
		}),
		points: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "framework_extension_point_duration_seconds", StabilityLevel: metrics.STABLE,
			Buckets: metrics.ExponentialBuckets(0.0001, 2, 12), Help: "How long all plugins of a phase take for a pod.",
		}, []string{"extension_point", "status", "profile"}),
		incoming: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "queue_incoming_pods_total", StabilityLevel: metrics.STABLE,
			Help: "Pods that have come to a part of the queue, by what has brought them there.",
		}, []string{"queue", "event"}),
		batches: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "batch_attempts_total", StabilityLevel: metrics.ALPHA,
			Help: "Pods whose node was chosen of those that were found for another one, and pods for which all was looked at.",
		}, []string{"profile", "result"}),
		pending: metrics.NewDesc(subsystem+"_pending_pods", "Pods that wait for a node, by where in the queue they are.",
			[]string{"queue"}, nil, metrics.STABLE, ""),
	}
	r.MustRegister(m.attempts, m.attempt, m.sli, m.tries, m.preemptions, m.victims, m.points, m.incoming, m.batches)
	r.CustomMustRegister(m)
	return m
}

// Run tells which queue is counted.
func (m *Metrics) Run(counts Counts) {
	if m != nil {
		m.counts.Store(&counts)
	}
}

// Stop has no queue be counted: another member's scheduler runs.
func (m *Metrics) Stop() {
	if m != nil {
		m.counts.Store(nil)
	}
}

// Attempt tells of an attempt that is over.
func (m *Metrics) Attempt(result, profile string, took time.Duration) {
	if m == nil {
		return
	}
	m.attempts.WithLabelValues(result, profile).Inc()
	m.attempt.WithLabelValues(result, profile).Observe(took.Seconds())
}

// Bound tells of a pod that has its node, after so many attempts since the first one.
func (m *Metrics) Bound(attempts int, took time.Duration) {
	if m == nil {
		return
	}
	label := strconv.Itoa(attempts)
	if attempts >= manyAttempts {
		label = strconv.Itoa(manyAttempts) + "+"
	}
	m.sli.WithLabelValues(label).Observe(took.Seconds())
	m.tries.Observe(float64(attempts))
}

// Preemption tells that room is to be made.
func (m *Metrics) Preemption() {
	if m != nil {
		m.preemptions.Inc()
	}
}

// Victims tells of pods that are ended to make room.
func (m *Metrics) Victims(n int) {
	if m != nil {
		m.victims.Observe(float64(n))
	}
}

// Point tells of a phase whose plugins have run for a pod, and how that has ended.
func (m *Metrics) Point(point, status, profile string, took time.Duration) {
	if m != nil {
		m.points.WithLabelValues(point, status, profile).Observe(took.Seconds())
	}
}

// Incoming tells of a pod that has come to a part of the queue by an event.
func (m *Metrics) Incoming(queue, event string) {
	if m != nil {
		m.incoming.WithLabelValues(queue, event).Inc()
	}
}

// Batch tells of a node that is looked for: whether it was found among those that had been found for another pod.
func (m *Metrics) Batch(profile string, found bool) {
	if m == nil {
		return
	}
	result := "no_hint"
	if found {
		result = "hint_used"
	}
	m.batches.WithLabelValues(profile, result).Inc()
}

// DescribeWithStability implements [metrics.StableCollector].
func (m *Metrics) DescribeWithStability(c chan<- *metrics.Desc) { c <- m.pending }

// CollectWithStability implements [metrics.StableCollector].
func (m *Metrics) CollectWithStability(c chan<- metrics.Metric) {
	counts := m.counts.Load()
	if counts == nil {
		return
	}
	active, backoff, unschedulable, gated := (*counts)()
	for _, q := range []struct {
		name string
		n    int
	}{{"active", active}, {"backoff", backoff}, {"unschedulable", unschedulable}, {"gated", gated}} {
		c <- metrics.NewLazyConstMetric(m.pending, metrics.GaugeValue, float64(q.n), q.name)
	}
}
