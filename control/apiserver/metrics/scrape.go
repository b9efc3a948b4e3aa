package metrics

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// maxPage bounds what a node may answer, and maxKept how much of it may be of what is looked for: a thousand
	// containers are less than a MiB. What is parsed takes some twenty times as much memory as its text, and a node
	// that somebody has taken over may answer what it likes.
	maxPage = 32 << 20
	maxKept = 4 << 20
	maxLine = 16 << 10
	// scrapeTimeout bounds how long it may take for that.
	scrapeTimeout = 5 * time.Second
	resourcePath  = "/metrics/resource"
)

// The families that are looked for.
const (
	nodeCPU         = "node_cpu_usage_seconds_total"
	nodeMemory      = "node_memory_working_set_bytes"
	containerCPU    = "container_cpu_usage_seconds_total"
	containerMemory = "container_memory_working_set_bytes"
	containerStart  = "container_start_time_seconds"
)

func families() []string {
	return []string{nodeCPU, nodeMemory, containerCPU, containerMemory, containerStart}
}

// sample is what something had used at a time.
type sample struct {
	at     time.Time
	cpu    float64 // seconds, since it began
	memory float64 // bytes, of its working set
	// began is when a container was started; zero: it is not known.
	began time.Time
}

// container is one of a pod.
type container struct{ namespace, pod, name string }

// scrape is what a node has told at once.
type scrape struct {
	node       sample
	containers map[container]sample
}

// fetch asks a node.
func fetch(ctx context.Context, transport http.RoundTripper, base *url.URL, now func() time.Time) (*scrape, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(resourcePath).String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask for metrics: %s", response.Status)
	}
	s, err := parse(io.LimitReader(response.Body, maxPage), now())
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return s, nil
}

// parse reads a page of metrics. What has no time of its own is of the time given. A page that is cut off in the middle
// of a line is no page.
func parse(r io.Reader, now time.Time) (*scrape, error) {
	text, err := kept(r)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	found, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	s := &scrape{containers: map[container]sample{}}
	at := func(m *dto.Metric) time.Time {
		if ms := m.GetTimestampMs(); ms != 0 {
			return time.UnixMilli(ms)
		}
		return now
	}
	for _, m := range found[nodeCPU].GetMetric() {
		s.node.at, s.node.cpu = at(m), value(m)
	}
	for _, m := range found[nodeMemory].GetMetric() {
		s.node.memory = value(m)
	}
	if s.node.at.IsZero() {
		return nil, errors.New("nothing is said of the node")
	}
	of := func(family string, set func(*sample, *dto.Metric)) {
		for _, m := range found[family].GetMetric() {
			key := keyOf(m)
			c := s.containers[key]
			set(&c, m)
			s.containers[key] = c
		}
	}
	of(containerCPU, func(c *sample, m *dto.Metric) { c.at, c.cpu = at(m), value(m) })
	of(containerMemory, func(c *sample, m *dto.Metric) { c.memory = value(m) })
	of(containerStart, func(c *sample, m *dto.Metric) {
		if v := value(m); v > 0 && v < math.MaxInt32*1024 {
			c.began = time.Unix(0, int64(v*float64(time.Second)))
		}
	})
	return s, nil
}

// kept are the lines of a page that are of what is looked for.
func kept(r io.Reader) ([]byte, error) {
	var out []byte
	names := families()
	for lines := bufio.NewReaderSize(r, maxLine); ; {
		line, err := lines.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return out, nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("a line has more than %d bytes", maxLine)
		case err != nil:
			return nil, err
		}
		about := bytes.TrimPrefix(line, []byte("# TYPE "))
		if !slices.ContainsFunc(names, func(n string) bool { return bytes.HasPrefix(about, []byte(n)) }) {
			continue
		}
		if out = append(out, line...); len(out) > maxKept {
			return nil, fmt.Errorf("it tells more than %d bytes of nodes and containers", maxKept)
		}
	}
}

func keyOf(m *dto.Metric) container {
	var c container
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "namespace":
			c.namespace = l.GetValue()
		case "pod":
			c.pod = l.GetValue()
		case "container":
			c.name = l.GetValue()
		}
	}
	return c
}

// value is what a metric says, of whatever type it is.
func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return m.GetUntyped().GetValue()
}
