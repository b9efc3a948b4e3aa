package queues

import (
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
)

// works are what the workers of all queues are at. It implements [metrics.StableCollector].
type works struct {
	metrics.BaseStableCollector
	unfinished, longest *metrics.Desc

	mu    sync.Mutex
	names map[string]*work
}

func newWorks() *works {
	describe := func(name, help string) *metrics.Desc {
		return metrics.NewDesc(metrics.BuildFQName("", subsystem, name), help, []string{"name"}, nil, metrics.BETA, "")
	}
	return &works{
		unfinished: describe("unfinished_work_seconds", "How many seconds of work has done that is in progress and hasn't been observed by work_duration. "+
			"Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases."),
		longest: describe("longest_running_processor_seconds", "How many seconds has the longest running processor for workqueue been running."),
		names:   map[string]*work{},
	}
}

// of is that of the queues of a name.
func (w *works) of(name string) *work {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, ok := w.names[name]
	if !ok {
		one = &work{}
		w.names[name] = one
	}
	return one
}

// DescribeWithStability implements [metrics.StableCollector].
func (w *works) DescribeWithStability(to chan<- *metrics.Desc) {
	to <- w.unfinished
	to <- w.longest
}

// CollectWithStability implements [metrics.StableCollector].
func (w *works) CollectWithStability(to chan<- metrics.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, one := range w.names {
		total, longest := one.since(now)
		to <- metrics.NewLazyConstMetric(w.unfinished, metrics.GaugeValue, total.Seconds(), name)
		to <- metrics.NewLazyConstMetric(w.longest, metrics.GaugeValue, longest.Seconds(), name)
	}
}

// work is since when items of a queue have been worked on. A queue tells how long one took that is done, and not which.
type work struct {
	mu    sync.Mutex
	begun []time.Time
}

func (w *work) begin(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun = append(w.begun, now)
}

// end forgets the item that was begun so long ago: the queue and this have looked at their clocks one after the other.
func (w *work) end(now time.Time, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.begun) == 0 {
		return
	}
	at, nearest := now.Add(-took), 0
	for i, b := range w.begun {
		if b.Sub(at).Abs() < w.begun[nearest].Sub(at).Abs() {
			nearest = i
		}
	}
	w.begun = slices.Delete(w.begun, nearest, nearest+1)
}

// since is for how long all have been at it, and for how long one at most.
func (w *work) since(now time.Time) (total, longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range w.begun {
		one := now.Sub(b)
		total, longest = total+one, max(longest, one)
	}
	return total, longest
}

// depth is the gauge of how many items wait.
type depth struct {
	workqueue.GaugeMetric
	work *work
}

// Dec implements [workqueue.GaugeMetric].
func (d depth) Dec() {
	d.GaugeMetric.Dec()
	d.work.begin(time.Now())
}

// duration is the histogram of how long items took, in seconds.
type duration struct {
	workqueue.HistogramMetric
	work *work
}

// Observe implements [workqueue.HistogramMetric].
func (d duration) Observe(seconds float64) {
	d.HistogramMetric.Observe(seconds)
	d.work.end(time.Now(), time.Duration(seconds*float64(time.Second)))
}
