package sensor

import (
	"slices"
	"testing"
	"time"

	"github.com/berth-node/berth/eviction/signal"
)

const mib = 1 << 20

// falling are readings that end at a value, with less by some in each interval.
func falling(to, by int64, interval time.Duration, n int) []signal.Reading {
	at := time.Unix(1_000_000, 0)
	var out []signal.Reading
	for i := range n {
		out = append(out, signal.Reading{Available: to + int64(n-1-i)*by, Time: at.Add(time.Duration(i) * interval)})
	}
	return out
}

func TestPaceNext(t *testing.T) {
	const ms = time.Millisecond
	memory, blind := memoryPace(true), pace{fast: 10 * ms, calm: 20 * ms, rate: 4 * gib}
	for _, tt := range []struct {
		name    string
		pace    pace
		history []signal.Reading
		limits  []int64
		want    time.Duration
	}{
		{"nothing read", diskPace, nil, []int64{gib}, slow},
		{"disk far", diskPace, falling(100*gib, 0, time.Second, 1), []int64{10 * gib}, slow},
		{"disk near", diskPace, falling(14*gib, 0, time.Second, 1), []int64{10 * gib}, 2 * time.Second},
		{"disk very near", diskPace, falling(10*gib+1, 0, time.Second, 1), []int64{10 * gib}, time.Second},
		{"disk very near and still for long", diskPace, falling(10*gib+1, 0, 2*time.Second, 4), []int64{10 * gib}, 6 * time.Second},
		{"disk that fills in 40 s", diskPace, falling(14*gib, gib/10, time.Second, 5), []int64{10 * gib}, 2 * time.Second},
		{"disk that fills in 10 s", diskPace, falling(110*gib, 10*gib, time.Second, 5), []int64{10 * gib}, 500 * ms},
		{"disk that fills in less than a second", diskPace, falling(10*gib+50*mib, 10*mib, 100*ms, 5), []int64{10 * gib}, 50 * ms},
		{"below the soft limit, the hard one is next", diskPace, falling(14*gib, 0, time.Second, 1), []int64{20 * gib, 10 * gib}, 2 * time.Second},
		{"below all limits, the end is next", diskPace, falling(4*gib, 0, time.Second, 1), []int64{20 * gib, 10 * gib}, 2 * time.Second},
		{"nothing left", diskPace, falling(0, gib, time.Second, 5), []int64{10 * gib}, time.Second},
		{"process IDs", pidPace, falling(41_000, 0, time.Second, 1), []int64{1000}, 2 * time.Second},
		{"process IDs of a fork bomb", pidPace, falling(11_000, 1000, 100*ms, 5), []int64{1000}, 50 * ms},
		{"memory that is told of", memory, falling(101*mib, 0, time.Second, 5), []int64{100 * mib}, slow},
		{"memory that is told of, taken slowly", memory, falling(200*mib, mib, time.Second, 5), []int64{100 * mib}, 5 * time.Second},
		{"memory that is told of, taken fast", memory, falling(200*mib, 20*mib, 10*ms, 15), []int64{100 * mib}, 10 * ms},
		{"memory that nobody tells of", blind, falling(9*gib, 0, time.Second, 5), []int64{gib}, time.Second},
		{"memory that nobody tells of, near", blind, falling(gib+mib, 0, time.Second, 5), []int64{gib}, 20 * ms},
	} {
		if got := tt.pace.next(tt.history, tt.limits); (got - tt.want).Abs() > tt.want/50 {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestCalm comes back by and by, whatever the last reading says.
func TestCalm(t *testing.T) {
	w := newWatcher(nil, func(signal.Signal) pace { return memoryPace(true) })
	limits := map[signal.Signal][]int64{signal.MemoryAvailable: {100 * mib}}
	w.history[signal.MemoryAvailable] = falling(200*mib, 20*mib, 10*time.Millisecond, 15)
	before, _ := w.next(limits)
	w.history[signal.MemoryAvailable] = falling(10*gib, 0, time.Second, 5)
	looks := 0
	for ; before < slow; looks++ {
		next, _ := w.next(limits)
		if next != min(2*before, slow) {
			t.Fatalf("%v after %v", next, before)
		}
		before = next
	}
	if looks != 10 {
		t.Errorf("calm after %d looks", looks)
	}
}

func TestTell(t *testing.T) {
	for exhausts, want := range map[time.Duration]time.Duration{
		never: slow, 2 * time.Minute: slow, time.Minute: 3 * time.Second, 0: 100 * time.Millisecond,
	} {
		if got := tell(exhausts); got != want {
			t.Errorf("%v: %v, want %v", exhausts, got, want)
		}
	}
}

func TestLadder(t *testing.T) {
	for _, tt := range []struct {
		distance int64
		limits   []int64
		want     []int64
	}{
		{-1, nil, nil},
		{0, []int64{0, 5}, []int64{1, 5}},
		{3 * mib, []int64{3 * mib}, []int64{3 * mib}},
		{16 * mib, []int64{16 * mib, 100 * mib}, []int64{8 * mib, 12 * mib, 14 * mib, 16 * mib, 100 * mib}},
		{gib, []int64{gib}, []int64{gib - 512*mib, gib - 256*mib, gib - 128*mib, gib - 64*mib, gib - 32*mib, gib - 16*mib, gib}},
	} {
		if got := ladder(tt.distance, tt.limits); !slices.Equal(got, tt.want) {
			t.Errorf("%d: %v, want %v", tt.distance, got, tt.want)
		}
	}
}
