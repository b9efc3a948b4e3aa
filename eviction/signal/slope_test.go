package signal

import (
	"math"
	"testing"
	"time"
)

// readings are values at a fixed interval, the first long ago.
func readings(interval time.Duration, values ...int64) []Reading {
	at := time.Unix(1_000_000, 0)
	var out []Reading
	for _, v := range values {
		out = append(out, Reading{Available: v, Time: at})
		at = at.Add(interval)
	}
	return out
}

func TestExhaustion(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name    string
		history []Reading
		limit   int64
		want    time.Duration
		ok      bool
	}{
		{name: "nothing known"},
		{name: "two readings say nothing", history: readings(ms, 100, 50), limit: 10},
		{name: "reached", history: readings(ms, 10), limit: 10, ok: true},
		{name: "even", history: readings(50*ms, 100, 90, 80, 70), limit: 20, want: 250 * ms, ok: true},
		{name: "constant", history: readings(50*ms, 50, 50, 50, 50), limit: 20},
		{name: "growing", history: readings(50*ms, 50, 60, 70, 80), limit: 20},
		{name: "one reading strays", history: readings(50*ms, 100, 90, 500, 70, 60, 50), limit: 20, want: 150 * ms, ok: true},
		{name: "in bursts", history: readings(50*ms, 100, 100, 80, 80, 60, 60), limit: 20, want: 200 * ms, ok: true},
		{
			name: "slow for long, then fast", history: append(readings(10*time.Second, 1000, 1000, 1000, 1000),
				later(readings(50*ms, 900, 800, 700, 600), 31*time.Second)...), limit: 100, want: 250 * ms, ok: true,
		},
		{name: "at one blow", history: readings(100*ms, 1000, 999, 1000, 999, 600, 601, 600, 599, 600), limit: 100},
		{name: "read all the time", history: readings(ms, fall(1000, 200)...), limit: 500, want: 301 * ms, ok: true},
		{name: "within milliseconds", history: readings(10*ms, 100, 90, 80, 70, 60), limit: 20},
		{name: "so slow that it never ends", history: readings(time.Hour, math.MaxInt64, math.MaxInt64-2048, math.MaxInt64-4096)},
		{name: "at one time", history: readings(0, 100, 90, 80), limit: 20},
	} {
		got, ok := Exhaustion(tt.history, tt.limit)
		if ok != tt.ok || (got-tt.want).Abs() > tt.want/20 {
			t.Errorf("%s: %v %v, want %v %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

// fall goes down by one, n times.
func fall(from int64, n int) []int64 {
	var out []int64
	for i := range int64(n) {
		out = append(out, from-i)
	}
	return out
}

func later(r []Reading, by time.Duration) []Reading {
	for i := range r {
		r[i].Time = r[i].Time.Add(by)
	}
	return r
}

func FuzzExhaustion(f *testing.F) {
	f.Add(int64(10), int64(100), int64(90), int64(80), int64(70), int64(20))
	f.Fuzz(func(t *testing.T, interval, a, b, c, d, limit int64) {
		if got, ok := Exhaustion(readings(time.Duration(interval), a, b, c, d), limit); got < 0 || !ok && got != 0 {
			t.Errorf("%v %v", got, ok)
		}
	})
}
