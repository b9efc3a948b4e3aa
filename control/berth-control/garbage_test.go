package main

import "testing"

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
	var p pace
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
