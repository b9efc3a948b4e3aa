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
	p := newPace(testMemory, func() { t.Error("memory is given back, though nothing was done") })
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

// testMemory is what a process may have, and shared its share of it for garbage, in percent of what lives.
const testMemory = 1 << 30

func shared(live int) int { return testMemory / extraShare * 100 / live }

// TestRate has there be more room for garbage the more is allocated for a while, and memory be given back when that is
// over.
func TestRate(t *testing.T) {
	p := newPace(testMemory, func() { t.Error("memory is given back in the middle of the test") })
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
		{"one large list", 64 * quietRate, 100 * time.Millisecond, 50 * time.Millisecond, mostGarbage, mostGarbage * 2},
		{"much", 9 * quietRate, time.Minute, time.Second, mostGarbage*3 - 2, mostGarbage * 3},
		{"more than much", 1000 * quietRate, time.Minute, time.Second, mostGarbage + shared(littleHeap) - 2, mostGarbage + shared(littleHeap)},
		{"nothing for a while", 0, time.Minute, time.Minute, mostGarbage, mostGarbage},
	} {
		if is := spend(c.rate, c.during, c.step); is < c.least || is > c.most {
			t.Errorf("%s: %d %%, want %d to %d", c.what, is, c.least, c.most)
		}
	}
	spend(1000*quietRate, time.Minute, time.Second)
	const large = 10 * littleHeap
	if extra := p.percent(large) - gcPercent(large); extra > shared(large) || extra < shared(large)-2 {
		t.Errorf("a large heap that is busy has room for %d %% more, want %d", extra, shared(large))
	}
	p.memory = 64 << 20
	if extra, want := p.percent(large)-gcPercent(large), littleExtra*100/large; extra > want || extra < want-2 {
		t.Errorf("a large heap that is busy has room for %d %% more where there is little memory, want %d", extra, want)
	}
	spend(100<<20, time.Minute, time.Second)
	p.memory = 1 << 40
	if extra, want := p.percent(large)-gcPercent(large), 100<<20*100/large; extra > want || extra < want-2 {
		t.Errorf("a large heap has room for %d %% more, want what a second brings, %d", extra, want)
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
