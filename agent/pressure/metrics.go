package pressure

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/signal"
)

// counted is what is counted of evictions, by kubelet's names.
type counted struct {
	evictions *prometheus.CounterVec
	ages      *prometheus.HistogramVec

	mu   sync.Mutex
	told []types.UID // pods that were counted and not gone yet, the latest
}

// keptTold are more pods than take their time to go at once.
const keptTold = 64

func newCounted() *counted {
	c := &counted{
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_evictions", Help: "Cumulative number of pod evictions by eviction signal",
		}, []string{"eviction_signal"}),
		ages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubelet_eviction_stats_age_seconds",
			Help:    "Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9),
		}, []string{"eviction_signal"}),
	}
	for _, s := range slices.Concat(signal.All(), signal.Limits()) {
		c.evictions.WithLabelValues(string(s)) // there from the start: a rate needs the 0 before the first
	}
	return c
}

// evicted counts the pod of a decision. One that was told to end and not gone is the same eviction when it is finished.
func (c *counted) evicted(d *eviction.Decision) {
	if c.again(d) {
		return
	}
	c.evictions.WithLabelValues(string(d.Signal)).Inc()
	c.ages.WithLabelValues(string(d.Signal)).Observe((d.Age + d.Ordered.Sub(d.Time)).Seconds())
}

func (c *counted) again(d *eviction.Decision) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.told, d.Pod.UID) {
		return true
	}
	if d.Result.Told {
		c.told = append(slices.Clone(c.told[max(0, len(c.told)-keptTold+1):]), d.Pod.UID)
	}
	return false
}

// Collectors are the metrics of evictions and of the conditions.
func (n *Node) Collectors() []prometheus.Collector {
	out := []prometheus.Collector{n.counted.evictions, n.counted.ages}
	for _, t := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
	} {
		out = append(out, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_node_pressure", Help: "Whether a condition of the node holds.",
			ConstLabels: prometheus.Labels{"condition": string(t)},
		}, func() float64 {
			if slices.Contains(n.Holding(), t) {
				return 1
			}
			return 0
		}))
	}
	return out
}
