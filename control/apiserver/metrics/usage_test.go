package metrics

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const page = `# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 10 100000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1024 100000
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="c",namespace="a",pod="p"} 3 100000
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="c",namespace="a",pod="p"} 512 100000
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="c",namespace="a",pod="p"} 94.5
container_start_time_seconds{container="ended",namespace="a",pod="p"} 93
`

func TestParse(t *testing.T) {
	s, err := parse(strings.NewReader(page), time.Unix(7, 0))
	if err != nil {
		t.Fatal(err)
	}
	c := s.containers[container{"a", "p", "c"}]
	if s.node.cpu != 10 || s.node.memory != 1024 || !s.node.at.Equal(time.Unix(100, 0)) || c.cpu != 3 || !c.began.Equal(time.Unix(94, 5e8)) {
		t.Errorf("it says %v", s)
	}
	for _, bad := range []string{"", "node_cpu_usage_seconds_total{ 1", page[:len(page)-10] + "\x00{", "a 1\n"} {
		if _, err := parse(strings.NewReader(bad), time.Now()); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// endless repeats a text, and counts what is read of it.
type endless struct {
	text string
	read int
}

// Read implements [io.Reader].
func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text[(e.read+n)%len(e.text):])
	}
	e.read += n
	return n, nil
}

// TestParseHostile has a node answer without end: what is of no use is passed over, what is of use is bounded, and so
// is a line.
func TestParseHostile(t *testing.T) {
	for name, text := range map[string]string{
		"containers": "container_cpu_usage_seconds_total{container=\"c\"} 1\n", "kinds": "# TYPE node_cpu_usage_seconds_total counter\n", "one line": "container_cpu",
	} {
		e := &endless{text: text}
		if _, err := parse(e, time.Now()); err == nil || e.read > maxKept+2*maxLine {
			t.Errorf("%s: after %d bytes: %v", name, e.read, err)
		}
	}
	others := strings.Repeat("other_metric{a=\"b\"} 1\n", 2*maxKept/20)
	if s, err := parse(strings.NewReader(others+page), time.Unix(7, 0)); err != nil || s.node.cpu != 10 {
		t.Errorf("a page with much else in it: %v", err)
	}
}

func TestBetween(t *testing.T) {
	at := func(s int64, cpu float64, began int64) sample {
		x := sample{at: time.Unix(s, 0), cpu: cpu, memory: 100}
		if began > 0 {
			x.began = time.Unix(began, 0)
		}
		return x
	}
	nan := at(110, 5, 0)
	nan.memory = -1
	for name, c := range map[string]struct {
		before, after sample
		has, ok       bool
		milli         int64
		window        time.Duration
	}{
		"two":         {at(100, 1, 50), at(110, 6, 50), true, true, 500, 10 * time.Second},
		"started":     {at(100, 9, 50), at(110, 2, 106), true, true, 500, 4 * time.Second},
		"new":         {sample{}, at(110, 2, 106), false, true, 500, 4 * time.Second},
		"unknown":     {sample{}, at(110, 2, 0), false, false, 0, 0},
		"counts back": {at(100, 9, 0), at(110, 2, 0), true, false, 0, 0},
		"same":        {at(100, 1, 50), at(100, 1, 50), true, false, 0, 0},
		"nonsense":    {at(100, 1, 0), nan, true, false, 0, 0},
		"huge":        {at(100, 0, 0), at(101, 1e300, 0), true, false, 0, 0},
	} {
		u, ok := between(c.before, c.after, c.has)
		if ok != c.ok || ok && (u.used.Cpu().MilliValue() != c.milli || u.window != c.window) {
			t.Errorf("%s: %v, %v", name, u, ok)
		}
	}
}

// TestSampler asks a node as often as it takes, and one that does not answer not for a while.
func TestSampler(t *testing.T) {
	now, asked := time.Unix(1000, 0), 0
	var fail error
	measured := func() time.Time { return now.Truncate(5 * time.Second) } // as a kubelet does
	s := &sampler{
		now: func() time.Time { return now }, log: slog.New(slog.DiscardHandler), nodes: map[string]*answers{},
		wait: func(_ context.Context, d time.Duration) error { now = now.Add(d); return nil },
		ask: func(context.Context, *corev1.Node) (*scrape, error) {
			asked++
			return &scrape{node: sample{at: measured(), cpu: float64(measured().Unix())}}, fail
		},
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "1"}}
	get := func(cpu float64) {
		t.Helper()
		p, err := s.of(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if u, ok := p.node(); !ok || u.used.Cpu().AsApproximateFloat64() != cpu {
			t.Errorf("it uses %v", u)
		}
	}
	get(1)
	first := asked
	if first < 3 {
		t.Errorf("it was asked %d times", first)
	}
	get(1)
	if asked != first {
		t.Error("what is fresh is asked for again")
	}
	now = now.Add(fresh)
	if get(1); asked != first+1 {
		t.Errorf("it was asked %d times more", asked-first)
	}
	now = now.Add(2 * stale)
	if get(1); asked < first+3 {
		t.Error("it is compared with what is old")
	}
	now, fail = now.Add(fresh), errors.New("away")
	first = asked
	for range 3 {
		if _, err := s.of(t.Context(), n); err == nil {
			t.Error("it tells of what it has not heard")
		}
	}
	if asked != first+1 {
		t.Errorf("one that is away is asked %d times", asked-first)
	}
	now, fail = now.Add(firstPause), nil
	get(1)
	n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "2"}}
	first = asked
	if get(1); asked == first {
		t.Error("another node under the name is not asked")
	}
	s.keep(func(string) bool { return false })
	if len(s.nodes) != 0 {
		t.Error("a node that is gone is kept")
	}
}

// TestPods leaves out a pod of which one container is not known.
func TestPods(t *testing.T) {
	early, late := time.Unix(100, 0), time.Unix(110, 0)
	p := pair{&scrape{containers: map[container]sample{}}, &scrape{containers: map[container]sample{}}}
	put := func(pod, name string, both bool) {
		if both {
			p.before.containers[container{"a", pod, name}] = sample{at: early}
		}
		p.after.containers[container{"a", pod, name}] = sample{at: late, cpu: 1}
	}
	put("p", "c", true)
	put("p", "d", true)
	put("q", "c", true)
	put("q", "new", false)
	p.after.containers[container{"a", "p", "ended"}] = sample{began: early}
	if got := p.pods(); len(got) != 1 || len(got[podName{"a", "p"}]) != 2 {
		t.Errorf("pods are %v", got)
	}
}
