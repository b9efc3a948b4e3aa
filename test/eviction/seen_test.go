package eviction

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/eviction/signal"
)

// TestBombIsSeen: two gigabytes a second, and nothing has told of it before. It is seen before the kernel has to kill,
// also where other processes give back more memory meanwhile than was to be left.
func TestBombIsSeen(t *testing.T) {
	for name, world := range map[string]func(testing.TB) *world{"allocatable": newWorld, "node": newNode} {
		t.Run(name, func(t *testing.T) { seesBomb(t, world(t), func() {}) })
	}
	t.Run("node where others give memory back", func(t *testing.T) {
		r, err := signal.NewNode(signal.Paths{}).Memory()
		if err != nil {
			t.Fatal(err)
		}
		size := int(min(3<<30, r[signal.MemoryAvailable].Available/3))
		take := func() []byte {
			others, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
			if err != nil {
				t.Fatal(err)
			}
			return others
		}
		others := take()
		seesBomb(t, newNode(t), func() {
			if others == nil { // it is another try
				others = take()
			}
			if err := unix.Munmap(others); err != nil {
				t.Error(err)
			}
			others = nil
		})
	})
}

// tooLong is how long the sensor can be kept from running so that nobody could have seen a bomb in time.
const tooLong = 50 * time.Millisecond

// seesBomb lets a bomb go when the alarms are set, and something else has happened then. A try that the machine has
// spoiled, by not letting this process run, says nothing.
func seesBomb(t *testing.T, w *world, then func()) {
	t.Helper()
	for tries := 1; ; tries++ {
		w.arm(t)
		then()
		before, end := w.kills(t), stalls()
		took, rate, err := w.explode(t)
		stalled, n := end(), w.kills(t)
		if err == nil && n == before {
			t.Logf("seen %v after %d MiB were left, at %.0f MiB/s", took, w.hard/mib, rate/mib)
			return
		}
		if tries == 20 || stalled < tooLong {
			t.Fatalf("the kernel has killed %s processes, had %s; %v; the longest stall was %v", n, before, err, stalled)
		}
		t.Logf("try %d is of no use: this process was kept waiting for %v", tries, stalled)
		w.calm(t)
	}
}

// stalls measures for how long this process was kept waiting at most until it is ended.
func stalls() (end func() time.Duration) {
	stop, most := make(chan struct{}), make(chan time.Duration)
	go func() {
		var longest time.Duration
		for {
			before := time.Now()
			select {
			case <-stop:
				most <- longest
				return
			case <-time.After(time.Millisecond):
				longest = max(longest, time.Since(before))
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-most
	}
}
