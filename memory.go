package main

import (
	"log/slog"
	"math"
	"os"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/internal/garbage"
)

const (
	// What the kernel charges to the agent at a start, measured: see docs/performance.md. The first part is the helper,
	// which is in memory, and the pages of the program that are in use; the second what the kernel keeps for a pod that
	// the agent has made.
	fixedMemory  = 44 << 20
	memoryPerPod = 400 << 10
	// leastHeap is what the agent's own memory is not pressed below: collecting all the time helps nobody.
	leastHeap = 10 << 20
)

// memoryPlan is how the agent gets by with the memory it may have.
type memoryPlan struct {
	limit, need int64
	heap        int64 // for what Go has; 0: not limited
	short       bool  // there is less than a start with all pods at once needs
}

func planMemory(limit int64, pods int) memoryPlan {
	p := memoryPlan{limit: limit, need: fixedMemory + int64(pods)*memoryPerPod}
	if limit == math.MaxInt64 {
		return p
	}
	p.short = limit < p.need
	p.heap = max(limit-p.need+leastHeap, leastHeap)
	return p
}

// saveMemory has the heap collected early, and earlier where the agent's own group has a limit that is near, unless
// somebody has said otherwise. It says whether there is so little that pods had better be taken up one after the other.
func saveMemory(rootDir string, profiling bool, log *slog.Logger) (short bool) {
	if !profiling {
		goruntime.MemProfileRate = 0 // the samples are kept, and nobody can ask for them
	}
	pods, err := os.ReadDir(filepath.Join(rootDir, "pods"))
	if err != nil {
		pods = nil // there are none yet
	}
	p := planMemory(cgroups.OwnMemoryLimit(), len(pods))
	if p.short && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	} else {
		garbage.Pace(percentFor)
	}
	if p.short {
		log.Warn("the memory limit of the agent's own group is less than it needs for its pods: it starts slowly, and may be killed",
			"limit", p.limit, "needed", p.need, "pods", len(pods))
	}
	if p.heap > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(p.heap)
	}
	return p.short
}
