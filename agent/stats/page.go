package stats

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// page is a page of metrics while it is made. What a registry of Prometheus checks and sorts of every single value
// again and again is so by how this is written, and would cost many times as much as measuring: each family is there
// once, its values differ in their labels, and all have the family's.
type page struct{ families []*family }

// family is one metric of a page.
type family struct {
	dto.MetricFamily

	labels []string
}

// gatherer is a page that is made again for everybody who asks.
func gatherer(fill func(*page)) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		var p page
		fill(&p)
		var out []*dto.MetricFamily
		for _, f := range p.families {
			if len(f.Metric) > 0 {
				out = append(out, &f.MetricFamily)
			}
		}
		slices.SortFunc(out, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
		return out, nil
	})
}

// family begins a metric with those labels.
func (p *page) family(name, help string, kind prometheus.ValueType, labels ...string) *family {
	f := &family{labels: labels}
	f.Name, f.Help, f.Type = &name, &help, kind.ToDTO()
	p.families = append(p.families, f)
	return f
}

// value is a metric in one piece of memory.
type value struct {
	metric  dto.Metric
	counter dto.Counter
	gauge   dto.Gauge
	v       float64
	at      int64
}

// put adds a value, with the time of its measurement unless that is zero.
func (f *family) put(t time.Time, v float64, labels ...string) {
	f.putPairs(t, v, pairs(f.labels, labels))
}

func (f *family) putPairs(t time.Time, v float64, labels []*dto.LabelPair) {
	one := &value{v: v}
	one.metric.Label = labels
	if f.GetType() == dto.MetricType_COUNTER {
		one.counter.Value, one.metric.Counter = &one.v, &one.counter
	} else {
		one.gauge.Value, one.metric.Gauge = &one.v, &one.gauge
	}
	if !t.IsZero() {
		one.at = t.UnixMilli()
		one.metric.TimestampMs = &one.at
	}
	f.Metric = append(f.Metric, &one.metric)
}

// pairs are labels that any number of values may share.
func pairs(names, values []string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, len(values))
	all := make([]dto.LabelPair, len(values))
	for i := range values {
		all[i].Name, all[i].Value = &names[i], &values[i]
		out[i] = &all[i]
	}
	return out
}
