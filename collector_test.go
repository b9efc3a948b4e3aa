package main

import (
	goruntime "runtime"
	"runtime/debug"
	"testing"

	"github.com/berth-node/berth/internal/garbage"
)

var kept [][]byte

// TestPaceCollector allocates what a burst of pods does, with little and with much that lives.
func TestPaceCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	t.Cleanup(func() {
		kept = nil
		debug.SetGCPercent(before)
	})
	garbage.Pace(percentFor)
	for _, live := range []int{1, 100} {
		kept = nil
		for range live {
			kept = append(kept, make([]byte, 1<<20))
		}
		goruntime.GC()
		goruntime.GC() // finalizers of the first have been queued
		var a, b goruntime.MemStats
		goruntime.ReadMemStats(&a)
		const written = 256 << 20
		for range written >> 12 {
			kept[0] = make([]byte, 1<<12)
		}
		goruntime.ReadMemStats(&b)
		// Go paces a collection so that it ends at the goal, so it begins before it. How far beyond the goal the heap
		// gets meanwhile is the scheduler's: nothing is said of it here.
		if n, most := b.NumGC-a.NumGC, uint32(2*written/gcRoom); n > most {
			t.Errorf("with %d MiB that live: %d collections, at most %d are wanted", live, n, most)
		}
	}
	for live, want := range map[uint64]int{0: 100, 6 << 20: 66, 8 << 20: 50, 1 << 30: 50} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes: %d %%, not %d", live, got, want)
		}
	}
}
