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
		{100, 0, true}, {300, 0, true}, {999, 0, true}, {1000, 0, false}, {300, diskPatience, false},
	} {
		s := settling{}
		s.begin(l, now)
		latest := func(signal.Signal) (signal.Reading, bool) { return signal.Reading{Available: c.available}, true }
		_, _ = s.waits(corev1.ResourceEphemeralStorage, latest, now)
		if got, _ := s.waits(corev1.ResourceEphemeralStorage, latest, now.Add(c.after)); got != c.want {
			t.Errorf("with %d available after %v: %v", c.available, c.after, got)
		}
	}
}

// TestSettlingTaken: nobody waits for what has come to a disk, and others have taken again.
func TestSettlingTaken(t *testing.T) {
	now := time.Now()
	s := settling{}
	s.begin(&landing{flight: &flight{}, decision: Decision{
		Signal: signal.NodeFsInodesFree, Available: 100, Pod: Name{UID: "a"}, Ranked: []rank.Line{{Pod: rank.Pod{UID: "a", Known: true, Usage: 1000}}},
	}}, now)
	for i, look := range []struct {
		available int64
		want      bool
	}{{100, true}, {50, true}, {500, true}, {400, true}, {290, false}} {
		latest := func(signal.Signal) (signal.Reading, bool) { return signal.Reading{Available: look.available}, true }
		if got, _ := s.waits(signal.ResourceInodes, latest, now); got != look.want {
			t.Errorf("%d: with %d available: %v", i, look.available, got)
		}
	}
}

// TestSettlingOfReclaimed: what nobody needs is removed in the background, and no pod goes before that has come to its
// end.
func TestSettlingOfReclaimed(t *testing.T) {
	now := time.Now()
	s := settling{}
	s.begin(&landing{flight: &flight{}, decision: Decision{Signal: signal.NodeFsAvailable, Available: 100, Reclaimed: 1000}}, now)
	for _, available := range []int64{100, 999, 1000} {
		latest := func(signal.Signal) (signal.Reading, bool) { return signal.Reading{Available: available}, true }
		if got, _ := s.waits(corev1.ResourceEphemeralStorage, latest, now); got != (available < 1000) {
			t.Errorf("with %d available: %v", available, got)
		}
	}
}

// TestSettlingOfMemory: files in memory may be free a moment after their pod, and nobody else goes before; but for no
// longer than there is not less and less.
func TestSettlingOfMemory(t *testing.T) {
	const size = 256 << 20
	now := time.Now()
	l := &landing{flight: &flight{}, decision: Decision{
		Signal: signal.MemoryAvailable, Available: 100 << 20, Pod: Name{UID: "a"},
		Ranked: []rank.Line{{Pod: rank.Pod{UID: "a", Known: true, Usage: size}}},
	}}
	for name, c := range map[string]struct {
		available []int64 // one look after the other
		after     time.Duration
		want      bool
	}{
		"at once":              {[]int64{400 << 20}, 0, false},
		"not yet":              {[]int64{90 << 20, 92 << 20}, 0, true},
		"not all yet":          {[]int64{90 << 20, 300 << 20}, 0, true},
		"a little less":        {[]int64{90 << 20, 80 << 20}, 0, true},
		"others take it":       {[]int64{90 << 20, 70 << 20}, 0, false},
		"others take what was": {[]int64{90 << 20, 200 << 20, 180 << 20}, 0, false},
		"never":                {[]int64{90 << 20, 90 << 20}, memoryPatience, false},
	} {
		s := settling{}
		s.begin(l, now)
		var got bool
		for i, available := range c.available {
			at := now
			if i == len(c.available)-1 {
				at = at.Add(c.after)
			}
			got, _ = s.waits(corev1.ResourceMemory, func(signal.Signal) (signal.Reading, bool) {
				return signal.Reading{Available: available}, true
			}, at)
		}
		if got != c.want {
			t.Errorf("%s: waits %v", name, got)
		}
	}
	s := settling{}
	s.begin(&landing{flight: &flight{}, decision: Decision{Signal: signal.PIDAvailable}}, now)
	if len(s) > 0 {
		t.Error("process IDs are waited for")
	}
}

// TestSettlingInVain: who waits in vain for what was given back, since others take it at once, waits for less and less
// until there is enough again.
func TestSettlingInVain(t *testing.T) {
	now := time.Now()
	s := settling{}
	latest := func(signal.Signal) (signal.Reading, bool) { return signal.Reading{Available: 0}, true }
	waited := func() (sum time.Duration) {
		s.begin(&landing{flight: &flight{}, decision: Decision{Signal: signal.NodeFsInodesFree, Pod: Name{UID: "a"}}}, now)
		for {
			goes, until := s.waits(signal.ResourceInodes, latest, now)
			if !goes {
				return sum
			}
			sum, now = sum+until.Sub(now), until
		}
	}
	first, second := waited(), waited()
	for range 10 {
		waited()
		s.begin(&landing{flight: &flight{}, decision: Decision{Signal: signal.NodeFsInodesFree, Reclaimed: 10}}, now)
	}
	if last := waited(); first != diskPatience || second != first/2 || last != diskLeast {
		t.Errorf("waited for %v, %v, and %v in the end", first, second, last)
	}
	s.eased(signal.ResourceInodes)
	if again := waited(); again != first {
		t.Errorf("waited for %v when it had eased", again)
	}
}
