package garbage

import (
	"runtime"
	"runtime/debug"
	"testing"
)

var kept [][]byte

// TestPace has a percentage asked for after each collection, with what lives then.
func TestPace(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	asked := make(chan uint64)
	over := make(chan struct{})
	t.Cleanup(func() {
		kept = nil
		close(over)
		debug.SetGCPercent(before)
	})
	go Pace(func(live uint64) int {
		select {
		case asked <- live:
		case <-over:
		}
		return 77
	})
	<-asked
	for _, live := range []int{1, 100} {
		kept = nil
		for range live {
			kept = append(kept, make([]byte, 1<<20))
		}
		for told := uint64(0); told < uint64(live)<<20; {
			runtime.GC() // again, where it was before there was anything to be told by
			select {
			case told = <-asked:
			default:
			}
		}
		runtime.KeepAlive(kept)
	}
	if set := debug.SetGCPercent(77); set != 77 {
		t.Errorf("%d %% are set, not what was said", set)
	}
}

// TestPaceIsLeft has who sets GOGC have the last word.
func TestPaceIsLeft(t *testing.T) {
	t.Setenv("GOGC", "123")
	Pace(func(uint64) int {
		t.Error("asked, though GOGC is set")
		return 1
	})
}
