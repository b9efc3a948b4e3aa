package cgroups

import "time"

// Usage is what a group used, everything the kernel tells at one instant. Counters count since the group was made, and
// include the groups below it.
type Usage struct {
	Time   time.Time `json:"time"`
	CPU    CPU       `json:"cpu"`
	Memory Memory    `json:"memory"`
	Pids   Pids      `json:"pids"`
	IO     IO        `json:"io"`
	// PSI is nil where the kernel keeps no pressure for groups: v1 without a v2 hierarchy beside it, or psi=0.
	PSI *PSI `json:"psi,omitempty"`
}

// CPU is time in nanoseconds, and how often the quota stopped the group.
type CPU struct {
	UsageNs          uint64 `json:"usageNs"`
	UserNs           uint64 `json:"userNs"`
	SystemNs         uint64 `json:"systemNs"`
	Periods          uint64 `json:"periods"`
	ThrottledPeriods uint64 `json:"throttledPeriods"`
	ThrottledNs      uint64 `json:"throttledNs"`
	Bursts           uint64 `json:"bursts"`
	BurstNs          uint64 `json:"burstNs"`
	QuotaUs          uint64 `json:"quotaUs"`  // microseconds of CPU time in each period, NoLimit without a quota
	PeriodUs         uint64 `json:"periodUs"` // 0 where the kernel tells of none
}

// Memory is in bytes.
type Memory struct {
	Usage uint64 `json:"usage"`
	// WorkingSet is usage without the file cache the kernel would drop first, kubelet's measure for eviction.
	WorkingSet uint64 `json:"workingSet"`
	// Available is what the group could still take: its limit less what cannot be reclaimed at once. NoLimit without
	// one.
	Available    uint64 `json:"available"`
	Limit        uint64 `json:"limit"`
	RSS          uint64 `json:"rss"`
	Cache        uint64 `json:"cache"`
	MappedFile   uint64 `json:"mappedFile"`
	InactiveFile uint64 `json:"inactiveFile"`
	ActiveFile   uint64 `json:"activeFile"`
	Slab         uint64 `json:"slab"`
	KernelStack  uint64 `json:"kernelStack"`
	Shmem        uint64 `json:"shmem"`
	Swap         uint64 `json:"swap"`
	// NoLimit without one; on v1 that of memory and swap together, less that of memory.
	SwapLimit   uint64 `json:"swapLimit"`
	PageFaults  uint64 `json:"pageFaults"`
	MajorFaults uint64 `json:"majorFaults"`
	OOMKills    uint64 `json:"oomKills"`
	LimitHits   uint64 `json:"limitHits"` // how often usage ran into the limit
	HighHits    uint64 `json:"highHits"`  // v2: how often memory.high slowed the group
	Peak        uint64 `json:"peak"`
}

// Pids counts tasks, threads included.
type Pids struct {
	Current uint64 `json:"current"`
	Limit   uint64 `json:"limit"`
}

// IO is summed over all devices.
type IO struct {
	ReadBytes  uint64 `json:"readBytes"`
	WriteBytes uint64 `json:"writeBytes"`
	ReadOps    uint64 `json:"readOps"`
	WriteOps   uint64 `json:"writeOps"`
}

// PSI is the time tasks of the group stood waiting for a resource.
type PSI struct {
	CPU    Pressure `json:"cpu"`
	Memory Pressure `json:"memory"`
	IO     Pressure `json:"io"`
}

// stalls is the total of all waiting, which only grows.
func (p *PSI) stalls() uint64 {
	if p == nil {
		return 0
	}
	return p.CPU.Some.TotalUs + p.Memory.Some.TotalUs + p.IO.Some.TotalUs
}

// of is the pressure that a motion is of; none has none.
func (p *PSI) of(q motion) Pressure {
	if p != nil {
		switch q {
		case cpuStall:
			return p.CPU
		case memoryStall:
			return p.Memory
		case ioStall:
			return p.IO
		}
	}
	return Pressure{}
}

func (p *PSI) clone() *PSI {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Pressure has a line for "at least one task waited" and one for "all of them did".
type Pressure struct {
	Some Stall `json:"some"`
	Full Stall `json:"full"`
}

// Stall is in percent over 10, 60 and 300 seconds, and in total microseconds.
type Stall struct {
	Avg10   float64 `json:"avg10"`
	Avg60   float64 `json:"avg60"`
	Avg300  float64 `json:"avg300"`
	TotalUs uint64  `json:"totalUs"`
}
