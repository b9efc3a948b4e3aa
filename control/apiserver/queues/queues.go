// Package queues is the metrics of work queues. The library's own provider has each queue with a name write down twice
// a second for how long its workers have been at what they do: in a server that idles that was every third time it
// woke. Here it is summed up when somebody asks for it.
package queues

import (
	"runtime"
	"strings"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// init comes before that of k8s.io/component-base/metrics/prometheus/workqueue, since the first provider counts: of
// packages that wait for the same ones Go begins with the one whose path is first, and that one waits for what this
// waits for.
func init() { workqueue.SetProvider(all) }

const subsystem = "workqueue"

// all are the metrics of this process, which are registered once.
var (
	all  = newProvider()
	once sync.Once
)

// provider implements [workqueue.MetricsProvider]. Queues of the same name have the same metrics.
type provider struct {
	depth                 *metrics.GaugeVec
	adds, retries         *metrics.CounterVec
	latency, workDuration *metrics.HistogramVec
	works                 *works
}

func newProvider() *provider {
	label := []string{"name"}
	buckets := metrics.ExponentialBuckets(10e-9, 10, 10) // seconds
	return &provider{
		depth: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Subsystem: subsystem, Name: "depth", StabilityLevel: metrics.BETA, Help: "Current depth of workqueue",
		}, label),
		adds: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "adds_total", StabilityLevel: metrics.BETA, Help: "Total number of adds handled by workqueue",
		}, label),
		retries: metrics.NewCounterVec(&metrics.CounterOpts{
			Subsystem: subsystem, Name: "retries_total", StabilityLevel: metrics.BETA, Help: "Total number of retries handled by workqueue",
		}, label),
		latency: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "queue_duration_seconds", StabilityLevel: metrics.BETA, Buckets: buckets,
			Help: "How long in seconds an item stays in workqueue before being requested.",
		}, label),
		workDuration: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Subsystem: subsystem, Name: "work_duration_seconds", StabilityLevel: metrics.BETA, Buckets: buckets,
			Help: "How long in seconds processing an item from workqueue takes.",
		}, label),
		works: newWorks(),
	}
}

// Register has the process's registry have the metrics of all work queues. Queues that are made before it count too.
func Register() {
	once.Do(func() {
		legacyregistry.MustRegister(all.depth, all.adds, all.retries, all.latency, all.workDuration)
		legacyregistry.CustomMustRegister(all.works)
	})
}

// NewDepthMetric implements [workqueue.MetricsProvider]. The depth falls when an item is taken, and never else.
func (p *provider) NewDepthMetric(name string) workqueue.GaugeMetric {
	return depth{p.depth.WithLabelValues(name), p.works.of(name)}
}

// NewAddsMetric implements [workqueue.MetricsProvider].
func (p *provider) NewAddsMetric(name string) workqueue.CounterMetric {
	return p.adds.WithLabelValues(name)
}

// NewLatencyMetric implements [workqueue.MetricsProvider].
func (p *provider) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return p.latency.WithLabelValues(name)
}

// NewWorkDurationMetric implements [workqueue.MetricsProvider]. Each item that is done is observed, once.
func (p *provider) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return duration{p.workDuration.WithLabelValues(name), p.works.of(name)}
}

// NewUnfinishedWorkSecondsMetric implements [workqueue.MetricsProvider].
func (p *provider) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return unasked{}
}

// NewLongestRunningProcessorSecondsMetric implements [workqueue.MetricsProvider].
func (p *provider) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return unasked{}
}

// NewRetriesMetric implements [workqueue.MetricsProvider].
func (p *provider) NewRetriesMetric(name string) workqueue.CounterMetric {
	return p.retries.WithLabelValues(name)
}

// unasked is a gauge that a queue sets by the clock, and that nobody reads.
type unasked struct{}

// Set implements [workqueue.SettableGaugeMetric]. It ends the goroutine in which a queue does nothing but that, which a
// queue has no word against. What the goroutine has deferred is done: it lets go of the queue's lock, and the end of
// the queue need not wait for it.
func (unasked) Set(float64) {
	if byClock() {
		runtime.Goexit()
	}
}

// byClock says whether the goroutine is one that a queue has for this alone. Where the library has another name for it,
// or sets its gauges elsewhere, nothing is ended.
func byClock() bool {
	pcs := make([]uintptr, 8)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasPrefix(f.Function, "k8s.io/client-go/util/workqueue.") && strings.HasSuffix(f.Function, ".updateUnfinishedWorkLoop") {
			return true
		}
		if !more {
			return false
		}
	}
}
