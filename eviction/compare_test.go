package eviction

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/eviction/threshold"
)

// TestConfirm has memory run short for a moment only: nothing is done, and nothing said, before it was so for long
// enough. Disks do not lie.
func TestConfirm(t *testing.T) {
	const confirm = 10 * time.Millisecond
	began := time.Now()
	for _, c := range []struct {
		of       signal.Signal
		readings []int64 // 5 ms apart
		acts     []bool
	}{
		{mem, []int64{50, 50, 50}, []bool{false, false, true}},
		{mem, []int64{50, 500, 50, 50, 50}, []bool{false, false, false, false, true}},
		{signal.AllocatableMemoryAvailable, []int64{50, 500, 50}, []bool{false, false, false}},
		{signal.NodeFsAvailable, []int64{50}, []bool{true}},
	} {
		j := newJudge(&Config{Policy: policy(hard(c.of, 100, 0)), Confirm: confirm, Log: slog.New(slog.DiscardHandler)})
		var since time.Time
		for i, left := range c.readings {
			now := began.Add(time.Duration(i) * confirm / 2)
			if i == 0 || c.readings[i-1] >= 100 {
				since = now
			}
			next := earliest{now: now}
			due, _ := j.compare(signal.Readings{c.of: {Available: left, Capacity: 1000}}, now, &next)
			if got := len(due) == 1; got != c.acts[i] || j.conditions(now)[c.of.Condition()] != got {
				t.Errorf("%s %v: at the reading %d acts %v, says %v", c.of, c.readings, i, got, j.conditions(now))
			}
			if waits := left < 100 && !c.acts[i]; waits && !next.at.Equal(since.Add(confirm)) {
				t.Errorf("%s %v: after the reading %d looks again at %s", c.of, c.readings, i, next.at.Sub(since))
			}
		}
	}
}

// TestDoubt has memory run short by what the kernel does not say the use of: it is given time to say so, unless there
// is too little without it.
func TestDoubt(t *testing.T) {
	const confirm = 10 * time.Millisecond
	j := newJudge(&Config{Policy: policy(hard(mem, 100, 0)), Confirm: confirm, Log: slog.New(slog.DiscardHandler)})
	began := time.Now()
	for _, c := range []struct {
		after       time.Duration
		left, doubt int64
		acts        bool
	}{
		{0, 50, 60, false},
		{2 * confirm, 50, 60, false},
		{3 * confirm, 50, 40, true},
		{4 * confirm, 500, 0, false},
		{5 * confirm, 50, 60, false},
		{(5+doubted)*confirm - 1, 50, 60, false},
		{(5 + doubted) * confirm, 50, 60, true},
	} {
		now := began.Add(c.after)
		readings := signal.Readings{mem: {Available: c.left, Capacity: 1000, Doubt: c.doubt}}
		next := earliest{now: now}
		j.remember(readings)
		due, _ := j.compare(readings, now, &next)
		if got := len(due) == 1; got != c.acts || j.conditions(now)[mem.Condition()] != got {
			t.Errorf("after %s it acts %v, says %v", c.after, got, j.conditions(now))
		}
		if waits := c.left < 100 && !c.acts; waits && (next.at.IsZero() || next.at.Sub(now) > confirm) {
			t.Errorf("after %s it looks again in %s", c.after, next.at.Sub(now))
		}
	}
}

// TestArmed has a signal that cannot be read for a moment keep the limits that it had, which grow with the capacity.
func TestArmed(t *testing.T) {
	share := threshold.Threshold{Signal: signal.NodeFsAvailable, Value: threshold.Value{Percent: 10}}
	j := newJudge(&Config{
		Policy: policy(hard(mem, 50, 0), soft(mem, 200, time.Second), share), Log: slog.New(slog.DiscardHandler),
	})
	limits := map[signal.Signal][]int64(nil)
	for _, c := range []struct {
		readings signal.Readings
		want     map[signal.Signal][]int64
	}{
		{
			signal.Readings{mem: {Capacity: 1000}, signal.NodeFsAvailable: {Capacity: 1000}},
			map[signal.Signal][]int64{mem: {200, 50}, signal.NodeFsAvailable: {100}},
		},
		{
			signal.Readings{signal.NodeFsAvailable: {Capacity: 2000}},
			map[signal.Signal][]int64{mem: {200, 50}, signal.NodeFsAvailable: {200}},
		},
	} {
		if limits = j.limits(c.readings, limits); !maps.EqualFunc(limits, c.want, slices.Equal[[]int64]) {
			t.Errorf("with %v: %v, want %v", c.readings, limits, c.want)
		}
	}
}
