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
