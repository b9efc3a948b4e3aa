package cgroups

import "time"

// Usage is what a group used, everything the kernel tells at one instant. Counters count since the group was made; on v1
// OOMKills counts the group alone, on v2 also what is below it.
type Usage struct {
	Time   time.Time
	CPU    CPU
	Memory Memory
	Pids   Pids
	IO     IO
	// PSI is nil where the kernel keeps no pressure for groups: v1 without a v2 hierarchy beside it, or psi=0.
	PSI *PSI
}

// CPU is time in nanoseconds, and how often the quota stopped the group.
type CPU struct {
	UsageNs, UserNs, SystemNs uint64
	Periods, ThrottledPeriods uint64
	ThrottledNs               uint64
	Bursts, BurstNs           uint64
}

// Memory is in bytes.
type Memory struct {
	Usage uint64
	// WorkingSet is usage without the file cache the kernel would drop first, kubelet's measure for eviction.
	WorkingSet uint64
	// Available is what the group could still take: its limit less what cannot be reclaimed at once. NoLimit without one.
	Available                uint64
	Limit                    uint64
	RSS, Cache, MappedFile   uint64
	InactiveFile, ActiveFile uint64
	Slab, KernelStack, Shmem uint64
	Swap                     uint64
	PageFaults, MajorFaults  uint64
	OOMKills                 uint64
	LimitHits                uint64 // how often usage ran into the limit
	HighHits                 uint64 // v2: how often memory.high slowed the group
	Peak                     uint64
}

// Pids counts tasks, threads included.
type Pids struct{ Current, Limit uint64 }

// IO is summed over all devices.
type IO struct{ ReadBytes, WriteBytes, ReadOps, WriteOps uint64 }

// PSI is the time tasks of the group stood waiting for a resource.
type PSI struct{ CPU, Memory, IO Pressure }

// Pressure has a line for "at least one task waited" and one for "all of them did".
type Pressure struct{ Some, Full Stall }

// Stall is in percent over 10, 60 and 300 seconds, and in total microseconds.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	TotalUs              uint64
}
