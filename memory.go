package main

import (
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"strconv"
	"strings"

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
	p := planMemory(ownLimit(), len(pods))
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

// ownLimit is the least limit of memory of the group that this process is in and of those above, in bytes;
// math.MaxInt64 where there is none, or none that can be read.
func ownLimit() int64 {
	least := int64(math.MaxInt64)
	h, err := cgroups.Open("")
	if err != nil {
		return least
	}
	group, err := h.FromPid(os.Getpid())
	if err != nil {
		return least
	}
	for ; ; group = path.Dir(group) {
		for _, name := range []string{"memory.limit_in_bytes", "memory.max"} {
			b, err := os.ReadFile(filepath.Join(h.Dir("memory", group), name))
			if err != nil {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			// v1 says no limit with the greatest multiple of a page, v2 with a word.
			if err == nil && n < math.MaxInt64>>12<<12 {
				least = min(least, n)
			}
		}
		if group == "/" {
			return least
		}
	}
}
