package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Client are those of requests to the API server, by kubelet's names and with its buckets, where kubelet has them.
type Client struct {
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	rotated  prometheus.Histogram
}

// NewClient has counted nothing yet.
func NewClient() *Client {
	const hour, day = 60 * 60, 24 * 60 * 60
	return &Client{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "Number of HTTP requests, partitioned by status code, method, and host.",
		}, []string{"code", "method", "host"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_duration_seconds", Help: "Request latency in seconds. Broken down by verb, and host.",
			Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0},
		}, []string{"verb", "host"}),
		rotated: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_client_certificate_rotation_seconds",
			Help:    "Histogram of the number of seconds the previous client certificate lived before being rotated.",
			Buckets: []float64{60, hour, 4 * hour, 6 * hour, 12 * hour, day, 5 * day, 15 * day, 30 * day, 90 * day, 180 * day, 365 * day},
		}),
	}
}

// Requested tells of a request, and the code of its answer. What a watch takes is how long it lasted, which is nothing
// of the server's, and is not told: 0.
func (c *Client) Requested(method, host, code string, took time.Duration) {
	c.requests.WithLabelValues(code, method, host).Inc()
	if took > 0 {
		c.took.WithLabelValues(method, host).Observe(took.Seconds())
	}
}

// Rotated tells how long a client certificate was used before another took its place.
func (c *Client) Rotated(lived time.Duration) { c.rotated.Observe(lived.Seconds()) }

// Collectors are all of them. ends is when the client certificate does; zero: there is none.
func (c *Client) Collectors(ends func() time.Time) []prometheus.Collector {
	return []prometheus.Collector{c.requests, c.took, c.rotated, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubelet_certificate_manager_client_ttl_seconds",
		Help: "Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry " +
			"(negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
	}, func() float64 { return untilEnd(ends()) })}
}

func untilEnd(at time.Time) float64 {
	if at.IsZero() {
		return math.Inf(1)
	}
	return time.Until(at).Seconds()
}
