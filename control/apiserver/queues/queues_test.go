package queues_test

import (
	"bytes"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-node/berth/control/apiserver/queues"

	_ "k8s.io/apiserver/pkg/server" // it has the library's provider, which must not be the first
)

// gathered is the text of what a registry has.
func gathered(t *testing.T, from metrics.Gatherer) string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "workqueue_") {
			if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	return text.String()
}

// value is that of a sample; empty: there is none.
func value(text, sample string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, sample+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// TestQueuesOfLibraries has a queue that is made as libraries make theirs have its metrics here, all that the library's
// provider has, and no goroutine that wakes by the clock.
func TestQueuesOfLibraries(t *testing.T) {
	queues.Register()
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "library"})
	q.Add("one")
	q.Add("two")
	q.Get()
	// The goroutine ends at the first tick of its clock.
	for clocks(t) {
		runtime.Gosched()
	}
	text := gathered(t, legacyregistry.DefaultGatherer)
	for sample, want := range map[string]string{
		`workqueue_depth{name="library"}`: "1", `workqueue_adds_total{name="library"}`: "2",
		`workqueue_queue_duration_seconds_count{name="library"}`: "1", `workqueue_work_duration_seconds_count{name="library"}`: "0",
		"# HELP workqueue_unfinished_work_seconds": "[BETA] " + unfinishedHelp, "# TYPE workqueue_unfinished_work_seconds": "gauge",
		"# TYPE workqueue_longest_running_processor_seconds": "gauge",
	} {
		if got := value(text, sample); got != want {
			t.Errorf("%s is %q, want %q", sample, got, want)
		}
	}
	for _, sample := range []string{`workqueue_unfinished_work_seconds{name="library"}`, `workqueue_longest_running_processor_seconds{name="library"}`} {
		if got := value(text, sample); got == "" || got == "0" {
			t.Errorf("%s is %q while an item is worked on", sample, got)
		}
	}
	q.Done("one")
	text = gathered(t, legacyregistry.DefaultGatherer)
	for _, sample := range []string{`workqueue_unfinished_work_seconds{name="library"}`, `workqueue_longest_running_processor_seconds{name="library"}`} {
		if got := value(text, sample); got != "0" {
			t.Errorf("%s is %q when nothing is worked on", sample, got)
		}
	}
	q.ShutDown() // it waits for what the queue has started
	if item, ended := q.Get(); item != "two" || ended {
		t.Errorf("a queue that is shut down has %q, ended %v", item, ended)
	}
	q.Done("two")
	if _, ended := q.Get(); !ended {
		t.Error("a queue that is shut down and empty has not ended")
	}
}

// unfinishedHelp is what the library says of it.
const unfinishedHelp = "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large " +
	"values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases."

// clocks says whether a queue still has a goroutine that writes down what nobody asks for.
func clocks(t *testing.T) bool {
	t.Helper()
	if t.Context().Err() != nil {
		t.Fatal("a queue keeps its clock")
	}
	all := make([]byte, 1<<20)
	return bytes.Contains(all[:runtime.Stack(all, true)], []byte("updateUnfinishedWorkLoop"))
}
