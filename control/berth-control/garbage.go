package main

import (
	"math"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
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
	// quietRate is how many bytes a second a server allocates at most that has little to do.
	quietRate = 8 << 20
	// mostRoom is how many times as much room for garbage a busy one has.
	mostRoom = 12
	// littleExtra is how much of that room may always be beyond what a quiet one has, in bytes. More there is for what
	// is full within fullAgain: a heap with 10,000 pods is gone through once in seconds where 1,000 watch them, and
	// several times a second where thousands of pods are bound, a third of all that is done then.
	littleExtra = 48 << 20
	fullAgain   = time.Second
	// extraLives and extraShare bound that: how many times as much as lives, and one in how many bytes of the memory.
	extraLives, extraShare = 2, 16
	// rateOver is what the rate is a mean over: one list of all pods is no load.
	rateOver = 2 * time.Second
	// burstOver is how long after a collection none has followed where a burst of work is over.
	burstOver = 10 * time.Second
)

// pace is how often garbage is collected.
type pace struct {
	memory  float64 // that there may be, in bytes
	started atomic.Bool
	// over ends a burst: nothing else would collect what it has left, for minutes.
	over *time.Timer

	mu   sync.Mutex
	rate rate
}

// newPace has a burst end by what gives memory back.
func newPace(memory uint64, giveBack func()) *pace {
	p := &pace{memory: float64(memory)}
	p.over = time.AfterFunc(burstOver, func() { p.end(allocated(), time.Now(), giveBack) })
	p.over.Stop()
	return p
}

// end gives memory back, unless the heap is so large that it takes so long to fill the room.
func (p *pace) end(allocated uint64, now time.Time, giveBack func()) {
	p.mu.Lock()
	busy := p.rate.since(allocated, now) > quietRate
	p.mu.Unlock()
	if busy {
		p.over.Reset(burstOver)
		return
	}
	giveBack()
}

// now is percent as of this moment.
func (p *pace) now(live uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate.tell(allocated(), time.Now())
	return p.percent(live)
}

// allocated is how many bytes have ever been.
func allocated() uint64 {
	all := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64()
}

// percent is how much garbage there may be, as a percentage of what lives. A start fills a heap that is empty: at each
// step of its growth all that lives would be gone through once more, a fifth of what a start costs.
func (p *pace) percent(live uint64) int {
	if !p.started.Load() {
		switch {
		case live <= startHeap*2/3:
			// Go reckons with so much where less lives.
			const least = 4 << 20
			return int((startHeap - live) * 100 / max(live, least))
		case live <= startHeap*4/3:
			return gcPercent(live)
		}
		// There is more than a start has by itself: it is busy.
	}
	more := p.rate.room()
	if more > 1 {
		p.over.Reset(burstOver)
	} else {
		p.over.Stop()
	}
	quiet, lives := float64(gcPercent(live)), float64(max(live, littleHeap))
	most := max(littleExtra, min(p.rate.mean*fullAgain.Seconds(), extraLives*lives, p.memory/extraShare))
	return int(quiet + min((more-1)*quiet, most*100/lives))
}

// gcPercent is how much garbage there may be where little is done, as a percentage of what lives. To go through the
// heap costs as much as there lives, and has to be done as often as the room for garbage is full: the sum of both,
// processors and memory, is least where that room grows with the square root of what lives.
func gcPercent(live uint64) int {
	if live <= littleHeap {
		return mostGarbage
	}
	return max(leastGarbage, int(mostGarbage*math.Sqrt(littleHeap/float64(live))))
}

// rate is how many bytes a second are allocated, as a mean of the last while.
type rate struct {
	mean  float64
	bytes uint64
	at    time.Time
}

// tell has it know how many have been until now.
func (r *rate) tell(bytes uint64, now time.Time) {
	if took := now.Sub(r.at); took > 0 && !r.at.IsZero() {
		old := math.Exp(-float64(took) / float64(rateOver))
		r.mean = old*r.mean + (1-old)*r.since(bytes, now)
	}
	r.bytes, r.at = bytes, now
}

// since is the rate since it was told last.
func (r *rate) since(bytes uint64, now time.Time) float64 {
	return float64(bytes-r.bytes) / now.Sub(r.at).Seconds()
}

// room is how many times as much garbage there may be as where little is done. The heap is gone through as often as the
// room is full, so that the sum of both is least where it grows with the square root of the rate, too.
func (r *rate) room() float64 {
	return min(mostRoom, max(1, math.Sqrt(r.mean/quietRate)))
}

// ownMemory is how much memory this process may have, in bytes.
func ownMemory() uint64 {
	limit := uint64(cgroups.OwnMemoryLimit())
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return limit // it cannot fail with memory of the process
	}
	return min(limit, machine.Totalram*uint64(machine.Unit))
}
