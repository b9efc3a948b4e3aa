package eviction

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// TestSettlingInParts: a file system that has given back the first of what a pod had gives back the rest in a moment,
// and nobody else goes before; but for no more than the patience there is.
func TestSettlingInParts(t *testing.T) {
	now := time.Now()
	l := &landing{flight: &flight{}, decision: Decision{Signal: signal.NodeFsAvailable, Available: 100, Pod: Name{UID: "a"}, Ranked: []rank.Line{
		{Pod: rank.Pod{UID: "b", Known: true, Usage: 1}}, {Pod: rank.Pod{UID: "a", Known: true, Usage: 1000}},
	}}}
	for _, c := range []struct {
		available int64
		after     time.Duration
		want      bool
	}{
		{100, 0, true}, {300, 0, true}, {999, 0, true}, {1000, 0, false}, {300, settlePatience, false},
	} {
		s := settling{}
		s.begin(l, now)
		latest := func(signal.Signal) (signal.Reading, bool) { return signal.Reading{Available: c.available}, true }
		if got := s.waits(corev1.ResourceEphemeralStorage, latest, now.Add(c.after)); got != c.want {
			t.Errorf("with %d available after %v: %v", c.available, c.after, got)
		}
	}
	s := settling{}
	s.begin(&landing{flight: &flight{}, decision: Decision{Signal: signal.MemoryAvailable}}, now)
	if len(s) > 0 {
		t.Error("memory is waited for")
	}
}
