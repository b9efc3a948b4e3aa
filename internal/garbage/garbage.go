// Package garbage says how much garbage there may be before Go collects it, by how much lives.
package garbage

import (
	"os"
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Pace sets how much garbage there may be, as a percentage of the bytes that live, unless somebody has said it by
// GOGC. Go knows one percentage for all sizes, so that it is worked out again after each collection. A memory limit
// (GOMEMLIMIT) counts beside it.
func Pace(percent func(live uint64) int) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var pace func()
	pace = func() {
		metrics.Read(live)
		debug.SetGCPercent(percent(live[0].Value.Uint64()))
		// It is unreachable, so it is called after the next collection, by the one goroutine that does this.
		goruntime.SetFinalizer(new(sentinel), func(*sentinel) { pace() })
	}
	pace()
}

// sentinel has a size: Go gives all objects without one the same address, and frees none of them.
type sentinel struct{ _ [16]byte }
