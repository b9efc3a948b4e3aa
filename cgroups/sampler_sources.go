package cgroups

import (
	"bytes"
	"fmt"
	"sync"
)

func (s *Sampler) pressureSources() []statSource {
	at := func(pick func(*PSI) *Pressure) func([]byte, *Usage) error {
		return func(data []byte, _ *Usage) error {
			if len(data) == 0 {
				return nil
			}
			if s.psi == nil {
				s.psi = &PSI{}
			}
			return parsePressure(data, pick(s.psi))
		}
	}
	return []statSource{
		{"", "cpu.pressure", always, at(func(p *PSI) *Pressure { return &p.CPU })},
		{"", "memory.pressure", always, at(func(p *PSI) *Pressure { return &p.Memory })},
		{"", "io.pressure", always, at(func(p *PSI) *Pressure { return &p.IO })},
	}
}

// bound is what a file tells of that cannot move in a group when it does not in the one above.
func bound(file string) motion {
	switch file {
	case "cpu.pressure":
		return cpuStall
	case "memory.pressure":
		return memoryStall
	case "io.pressure":
		return ioStall
	case "io.stat", "blkio.throttle.io_serviced_recursive":
		return transfers
	}
	return unbounded
}

// number reads a one-number file into where pick says.
func number(pick func(*Usage) *uint64) func([]byte, *Usage) error {
	return func(data []byte, u *Usage) error {
		n, err := ParseNumber(data)
		if err != nil {
			return err
		}
		*pick(u) = n
		return nil
	}
}

// keyed reads a "key value" file; pick returns nil for keys nobody wants.
func keyed(pick func(key string, u *Usage) (dst *uint64, scale uint64)) func([]byte, *Usage) error {
	return func(data []byte, u *Usage) error {
		fields(data, func(k []byte, v uint64) {
			if dst, scale := pick(string(k), u); dst != nil {
				*dst = v * scale
			}
		})
		return nil
	}
}

var v1Sources = sync.OnceValue(func() []statSource {
	return []statSource{
		{"cpuacct", "cpuacct.usage", first, number(func(u *Usage) *uint64 { return &u.CPU.UsageNs })},
		{"cpuacct", "cpuacct.usage_user", ifRan, number(func(u *Usage) *uint64 { return &u.CPU.UserNs })},
		{"cpuacct", "cpuacct.usage_sys", ifRan, number(func(u *Usage) *uint64 { return &u.CPU.SystemNs })},
		{"cpu", "cpu.stat", ifLimited, keyed(cpuStat)},
		{"cpu", "cpu.cfs_quota_us", limits, v1Quota},
		{"cpu", "cpu.cfs_period_us", rare, number(func(u *Usage) *uint64 { return &u.CPU.PeriodUs })},
		{"memory", "memory.stat", ifCharged, keyed(v1MemoryStat)},
		{"memory", "memory.usage_in_bytes", first, number(func(u *Usage) *uint64 { return &u.Memory.Usage })},
		{"memory", "memory.limit_in_bytes", limits, number(func(u *Usage) *uint64 { return &u.Memory.Limit })},
		{"memory", "memory.memsw.limit_in_bytes", limits, v1SwapLimit}, // after the limit of memory
		{"memory", "memory.max_usage_in_bytes", peaks, number(func(u *Usage) *uint64 { return &u.Memory.Peak })},
		{"memory", "memory.failcnt", peaks, number(func(u *Usage) *uint64 { return &u.Memory.LimitHits })},
		{"memory", "memory.memsw.failcnt", peaks, func(data []byte, u *Usage) error {
			n, err := ParseNumber(data) // without swap the sum runs into its limit first, and only this one counts
			u.Memory.LimitHits += n
			return err
		}},
		{"pids", "pids.current", ifRan, number(func(u *Usage) *uint64 { return &u.Pids.Current })},
		{"pids", "pids.max", rare, number(func(u *Usage) *uint64 { return &u.Pids.Limit })},
		{"blkio", "blkio.throttle.io_serviced_recursive", ifRan, func(data []byte, u *Usage) error {
			u.IO.ReadOps, u.IO.WriteOps = parseBlkio(data)
			return nil
		}},
		{"blkio", "blkio.throttle.io_service_bytes_recursive", ifMoved, func(data []byte, u *Usage) error {
			// No bytes without an operation.
			u.IO.ReadBytes, u.IO.WriteBytes = parseBlkio(data)
			return nil
		}},
	}
})

var v2Sources = sync.OnceValue(func() []statSource {
	return []statSource{
		{"", "cpu.stat", first, keyed(cpuStat)},
		{"", "cpu.max", limits, v2Quota},
		{"", "memory.stat", ifCharged, keyed(v2MemoryStat)},
		{"", "memory.current", first, number(func(u *Usage) *uint64 { return &u.Memory.Usage })},
		{"", "memory.max", limits, number(func(u *Usage) *uint64 { return &u.Memory.Limit })},
		{"", "memory.peak", peaks, number(func(u *Usage) *uint64 { return &u.Memory.Peak })},
		{"", "memory.swap.current", ifCharged, number(func(u *Usage) *uint64 { return &u.Memory.Swap })},
		{"", "memory.swap.max", limits, number(func(u *Usage) *uint64 { return &u.Memory.SwapLimit })},
		{"", "memory.events", ifTouched, keyed(v2MemoryEvents)},
		{"", "pids.current", ifRan, number(func(u *Usage) *uint64 { return &u.Pids.Current })},
		{"", "pids.max", rare, number(func(u *Usage) *uint64 { return &u.Pids.Limit })},
		{"", "io.stat", ifRan, func(data []byte, u *Usage) error {
			parseIOStat(data, &u.IO)
			return nil
		}},
	}
})

// v1Quota: -1 is none.
func v1Quota(data []byte, u *Usage) error {
	u.CPU.QuotaUs = NoLimit
	if bytes.HasPrefix(data, []byte("-")) {
		return nil
	}
	n, err := ParseNumber(data)
	u.CPU.QuotaUs = n
	return err
}

func v2Quota(data []byte, u *Usage) (err error) {
	u.CPU.QuotaUs, u.CPU.PeriodUs, err = parseCPUMax(data)
	return err
}

func v1SwapLimit(data []byte, u *Usage) error {
	n, err := ParseNumber(data)
	u.Memory.SwapLimit = NoLimit
	if err == nil && n != NoLimit && u.Memory.Limit != NoLimit {
		u.Memory.SwapLimit = n - min(u.Memory.Limit, n)
	}
	return err
}

// v1MemoryStat takes the total_ values, which include the groups below.
func v1MemoryStat(k string, u *Usage) (*uint64, uint64) {
	m := &u.Memory
	switch k {
	case "total_rss":
		return &m.RSS, 1
	case "total_cache":
		return &m.Cache, 1
	case "total_mapped_file":
		return &m.MappedFile, 1
	case "total_inactive_file":
		return &m.InactiveFile, 1
	case "total_active_file":
		return &m.ActiveFile, 1
	case "total_shmem":
		return &m.Shmem, 1
	case "total_swap":
		return &m.Swap, 1
	case "total_pgfault":
		return &m.PageFaults, 1
	case "total_pgmajfault":
		return &m.MajorFaults, 1
	}
	return nil, 0
}

// cpuStat takes v1's names, which count in nanoseconds, and v2's.
func cpuStat(k string, u *Usage) (*uint64, uint64) {
	const us = 1000
	c := &u.CPU
	switch k {
	case "usage_usec":
		return &c.UsageNs, us
	case "user_usec":
		return &c.UserNs, us
	case "system_usec":
		return &c.SystemNs, us
	case "nr_periods":
		return &c.Periods, 1
	case "nr_throttled":
		return &c.ThrottledPeriods, 1
	case "throttled_time":
		return &c.ThrottledNs, 1
	case "throttled_usec":
		return &c.ThrottledNs, us
	case "nr_bursts":
		return &c.Bursts, 1
	case "burst_time":
		return &c.BurstNs, 1
	case "burst_usec":
		return &c.BurstNs, us
	}
	return nil, 0
}

func v2MemoryStat(k string, u *Usage) (*uint64, uint64) {
	m := &u.Memory
	switch k {
	case "anon":
		return &m.RSS, 1
	case "file":
		return &m.Cache, 1
	case "file_mapped":
		return &m.MappedFile, 1
	case "inactive_file":
		return &m.InactiveFile, 1
	case "active_file":
		return &m.ActiveFile, 1
	case "shmem":
		return &m.Shmem, 1
	case "slab":
		return &m.Slab, 1
	case "kernel_stack":
		return &m.KernelStack, 1
	case "pgfault":
		return &m.PageFaults, 1
	case "pgmajfault":
		return &m.MajorFaults, 1
	}
	return nil, 0
}

func v2MemoryEvents(k string, u *Usage) (*uint64, uint64) {
	switch k {
	case "oom_kill":
		return &u.Memory.OOMKills, 1
	case "max":
		return &u.Memory.LimitHits, 1
	case "high":
		return &u.Memory.HighHits, 1
	}
	return nil, 0
}

// ParseUsage computes a Usage from files that were read before, such as a captured tree's. read returns nil for files
// that are not there; controller "" is the v2 hierarchy. Of OOM kills it has those of the group alone on v1, as the
// file has.
func ParseUsage(m Mode, read func(controller, file string) []byte) (Usage, error) {
	s := Sampler{}
	u := unlimited()
	sources := v1Sources()
	if m == Unified {
		sources = v2Sources()
	}
	for _, list := range [][]statSource{sources, s.pressureSources()} {
		for i := range list {
			src := &list[i]
			data := read(src.controller, src.name)
			if len(bytes.TrimSpace(data)) == 0 {
				continue
			}
			if err := src.read(data, &u); err != nil {
				return u, fmt.Errorf("read %s: %w", src.name, err)
			}
		}
	}
	if m != Unified {
		u.Memory.OOMKills = field(read("memory", "memory.oom_control"), "oom_kill")
	}
	u.PSI = s.psi
	u.Memory.derive()
	return u, nil
}
