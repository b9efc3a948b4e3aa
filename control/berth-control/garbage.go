package main

import (
	"math"
	"sync/atomic"
)

const (
	// mostGarbage has garbage collected twice as often as Go does by itself. The heap is mostly caches, which live on,
	// and a quarter of the memory is worth more here than a hundredth of a processor.
	mostGarbage = 50
	// leastGarbage is for heaps of gigabytes, which would otherwise be gone through all the time.
	leastGarbage = 10
	// littleHeap is what lives when there are next to no objects, in bytes.
	littleHeap = 40 << 20
	// startHeap is how far the heap of a start may grow before garbage is collected, in bytes. Where it grows further
	// what lives on is strewn over it, and the gaps stay: with 80 MB for ever ten more.
	startHeap = 48 << 20
)

// pace is how often garbage is collected.
type pace struct{ started atomic.Bool }

// percent is how much garbage there may be, as a percentage of what lives. A start fills a heap that is empty: at each
// step of its growth all that lives would be gone through once more, a fifth of what a start costs.
func (p *pace) percent(live uint64) int {
	if p.started.Load() || live > startHeap*2/3 {
		return gcPercent(live)
	}
	// Go reckons with so much where less lives.
	const least = 4 << 20
	return int((startHeap - live) * 100 / max(live, least))
}

// gcPercent is how much garbage there may be, as a percentage of what lives. To go through the heap costs as much as
// there lives, and has to be done as often as the room for garbage is full: the sum of both, processors and memory, is
// least where that room grows with the square root of what lives.
func gcPercent(live uint64) int {
	if live <= littleHeap {
		return mostGarbage
	}
	return max(leastGarbage, int(mostGarbage*math.Sqrt(littleHeap/float64(live))))
}
