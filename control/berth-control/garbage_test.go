package main

import (
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 50, littleHeap: 50, 4 * littleHeap: 25, 16 * littleHeap: 12, 1 << 40: leastGarbage,
	} {
		if is := gcPercent(live); is != want {
			t.Errorf("%d bytes: %d %%, want %d", live, is, want)
		}
	}
}

// TestPace has a heap grow to a size while a start fills it, and then as all others do.
func TestPace(t *testing.T) {
	p := newPace(func() { t.Error("memory is given back, though nothing was done") })
	for live, want := range map[uint64]uint64{0: startHeap, 8 << 20: startHeap, startHeap / 2: startHeap, startHeap: startHeap * 3 / 2} {
		reckoned := max(live, 4<<20)
		room := reckoned * uint64(p.percent(live)) / 100
		// A percentage is a whole number, and a large heap has less room.
		if is := live + room; is > want || is+reckoned/100+startHeap/4 < want {
			t.Errorf("%d bytes live: the heap grows to %d, want %d", live, is, want)
		}
	}
	p.started.Store(true)
	for _, live := range []uint64{0, 8 << 20, startHeap} {
		if is := p.percent(live); is != gcPercent(live) {
			t.Errorf("%d bytes live after the start: %d %%", live, is)
		}
	}
}

// TestRate has there be more room for garbage the more is allocated for a while, and memory be given back when that is
// over.
func TestRate(t *testing.T) {
	p := newPace(func() { t.Error("memory is given back in the middle of the test") })
	p.started.Store(true)
	var allocated uint64
	at := time.Unix(1e9, 0)
	spend := func(rate uint64, during, step time.Duration) int {
		for range during / step {
			at = at.Add(step)
			allocated += uint64(float64(rate) * step.Seconds())
			p.rate.tell(allocated, at)
		}
		return p.percent(littleHeap)
	}
	p.rate.tell(0, at)
	for _, c := range []struct {
		what         string
		rate         uint64
		during, step time.Duration
		least, most  int
	}{
		{"next to nothing", quietRate / 8, time.Minute, time.Second, mostGarbage, mostGarbage},
		{"one large list", 64 * quietRate, 100 * time.Millisecond, 50 * time.Millisecond, mostGarbage, mostGarbage * 5 / 4},
		{"much", 9 * quietRate, time.Minute, time.Second, mostGarbage*3 - 2, mostGarbage * 3},
		{"more than much", 1000 * quietRate, time.Minute, time.Second, mostGarbage * mostRoom, mostGarbage * mostRoom},
		{"nothing for a while", 0, time.Minute, time.Minute, mostGarbage, mostGarbage},
	} {
		if is := spend(c.rate, c.during, c.step); is < c.least || is > c.most {
			t.Errorf("%s: %d %%, want %d to %d", c.what, is, c.least, c.most)
		}
	}
	spend(1000*quietRate, time.Minute, time.Second)
	const large = 10 * littleHeap
	if extra := uint64(p.percent(large)-gcPercent(large)) * large / 100; extra > mostExtra || extra < mostExtra*9/10 {
		t.Errorf("a large heap that is busy has %d bytes more room", extra)
	}
	spend(0, time.Minute, time.Minute)
	if p.over.Stop() {
		t.Error("a burst that is over is waited for")
	}
	spend(9*quietRate, time.Minute, time.Second)
	p.end(allocated+2*quietRate, at.Add(time.Second), func() { t.Error("memory is given back in the middle of a burst") })
	if !p.over.Stop() {
		t.Error("the end of a burst is not waited for any longer")
	}
	back := false
	if p.end(allocated, at.Add(burstOver), func() { back = true }); !back {
		t.Error("memory is not given back when a burst is over")
	}
}
