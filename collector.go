package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/berth-node/berth/internal/monitor"
)

const (
	// gcPercent trades time for memory: the agent's heap is small and it is idle nearly always, so that it may collect
	// more often than Go would.
	gcPercent = 50
	// gcRoom is the least that is allocated from one collection to the next, in bytes. With the percentage alone an
	// agent of a few pods collects every 2 MiB, which a burst of pods writes in some milliseconds. More room costs
	// memory for good: what lives on is strewn over all that was allocated between two collections, and Go moves
	// nothing together. See docs/performance.md.
	gcRoom = 4 << 20
)

// percentFor is the percentage with which the next collection comes after gcRoom, or after gcPercent of what lives
// where that is more.
func percentFor(live uint64) int {
	// Below 4 MiB Go scales its least heap by the percentage as well.
	const least = 4 << 20
	return max(gcPercent, int(gcRoom*100/max(live, least)))
}

// collectAsGo has garbage collected as often as Go does by itself, unless somebody has said otherwise: a start does it
// less often.
func collectAsGo() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(100)
	}
}

// relaxMonitor has the Go runtime's monitor thread wake up less often. An agent that may not goes on as it is.
func relaxMonitor(log *slog.Logger) {
	if err := monitor.Relax(); err != nil {
		log.Debug("the runtime's monitor thread wakes up as often as Go has it", "error", err)
	}
}
