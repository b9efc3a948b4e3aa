package systemd

import (
	"math"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cgroups"
)

// Infinity is how systemd is told of no limit.
const Infinity uint64 = math.MaxUint64

// Property is one of a unit.
func Property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}

// accounting makes systemd switch the controllers on for a unit, whether or not it has a limit in them.
func accounting(m cgroups.Mode) []dbus.Property {
	io := "IOAccounting"
	if m != cgroups.Unified {
		io = "BlockIOAccounting"
	}
	return []dbus.Property{
		Property("CPUAccounting", true), Property("MemoryAccounting", true), Property("TasksAccounting", true), Property(io, true),
	}
}

// unitFiles are the files whose values systemd has as properties of a unit.
func unitFiles(m cgroups.Mode) []string {
	if m == cgroups.Unified {
		return []string{
			"cpu.weight", "cpu.max", "cpuset.cpus", "cpuset.mems", "memory.max", "memory.min", "memory.high", "memory.swap.max", "pids.max", "io.weight",
		}
	}
	return []string{"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes", "pids.max"}
}

// unitProperties are the settings in systemd's words. Those it has no words for (hugetlb, bursts, OOM groups) it leaves
// alone.
func unitProperties(m cgroups.Mode, r *specs.LinuxResources) []dbus.Property {
	if r == nil {
		return nil
	}
	var out []dbus.Property
	if r.CPU != nil {
		out = append(out, cpuProperties(m, r.CPU)...)
	}
	if mem := r.Memory; mem != nil && mem.Limit != nil {
		name := "MemoryMax"
		if m != cgroups.Unified {
			name = "MemoryLimit"
		}
		out = append(out, Property(name, limitOrInfinity(*mem.Limit)))
		if m == cgroups.Unified && mem.Swap != nil {
			swap := Infinity
			if *mem.Swap >= 0 && *mem.Limit >= 0 {
				swap = uint64(max(*mem.Swap-*mem.Limit, 0))
			}
			out = append(out, Property("MemorySwapMax", swap))
		}
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		n := Infinity
		if *r.Pids.Limit > 0 {
			n = uint64(*r.Pids.Limit)
		}
		out = append(out, Property("TasksMax", n))
	}
	if m == cgroups.Unified {
		out = append(out, rawProperties(r.Unified)...)
	}
	return out
}

func limitOrInfinity(v int64) uint64 {
	if v < 0 {
		return Infinity
	}
	return uint64(v)
}

func cpuProperties(m cgroups.Mode, c *specs.LinuxCPU) []dbus.Property {
	var out []dbus.Property
	if c.Shares != nil {
		if m == cgroups.Unified {
			out = append(out, Property("CPUWeight", cgroups.Weight(*c.Shares)))
		} else {
			out = append(out, Property("CPUShares", *c.Shares))
		}
	}
	if c.Quota != nil || c.Period != nil {
		period := uint64(cgroups.DefaultPeriodUs)
		if c.Period != nil && *c.Period > 0 {
			period = *c.Period
		}
		perSecond := Infinity
		if c.Quota != nil && *c.Quota > 0 {
			perSecond = PerSecond(*c.Quota, period)
		}
		out = append(out, Property("CPUQuotaPeriodUSec", period), Property("CPUQuotaPerSecUSec", perSecond))
	}
	if m == cgroups.Unified {
		for name, list := range map[string]string{"AllowedCPUs": c.Cpus, "AllowedMemoryNodes": c.Mems} {
			if mask, ok := CPUMask(list); ok {
				out = append(out, Property(name, mask))
			}
		}
	}
	return out
}

// PerSecond is a quota of microseconds a period as systemd has it, of microseconds a second. It counts in hundredths of
// a CPU, and rounded down it would be less than what was promised.
func PerSecond(quota int64, period uint64) uint64 {
	const step = 10_000
	return (uint64(quota)*1_000_000/period + step - 1) / step * step
}

// CPUMask turns "0-2,5" into the bytes of a bit mask, the lowest first. A list may come from any CRI client, and
// "0-4000000000" is a valid one that takes gigabytes to write out: numbers that do not fit into 16 bits, of which no
// kernel has that many CPUs, are refused before anything is made of the range. k8s.io/utils/cpuset would make an entry
// for each number first.
func CPUMask(list string) ([]byte, bool) {
	if list == "" {
		return nil, false
	}
	var mask []byte
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || from > to {
			return nil, false
		}
		for n := from; n <= to; n++ {
			for uint64(len(mask)) <= n/8 {
				mask = append(mask, 0)
			}
			mask[n/8] |= 1 << (n % 8)
		}
	}
	return mask, true
}

// rawProperties are the files of the specification's "unified" map that systemd knows.
func rawProperties(raw map[string]string) []dbus.Property {
	var out []dbus.Property
	for file, name := range map[string]string{
		"memory.min": "MemoryMin", "memory.low": "MemoryLow", "memory.high": "MemoryHigh", "memory.max": "MemoryMax",
		"memory.swap.max": "MemorySwapMax", "cpu.weight": "CPUWeight", "io.weight": "IOWeight", "pids.max": "TasksMax",
	} {
		text, ok := raw[file]
		if !ok {
			continue
		}
		text = strings.TrimPrefix(text, "default ")
		n := Infinity
		if text != "max" {
			v, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				continue
			}
			n = v
		}
		out = append(out, Property(name, n))
	}
	return out
}
