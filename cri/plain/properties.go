package plain

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/dbus"
	lib "github.com/opencontainers/cgroups"
	units "github.com/opencontainers/cgroups/systemd"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
)

// Versions of systemd that know more.
const (
	idleVersion      = 252
	oomPolicyVersion = 253
)

// limitProperties are limits in systemd's words, as libcontainer says them. The quota is rounded as systemd does, so
// that the group has it so, too.
func limitProperties(r *lib.Resources, version int) ([]dbus.Property, error) {
	props, err := units.GenerateDeviceProps(r, version)
	if err != nil {
		return nil, err
	}
	add := func(name string, value any) { props = append(props, systemd.Property(name, value)) }
	if r.Memory != 0 {
		add("MemoryMax", uint64(r.Memory))
	}
	if r.MemoryReservation != 0 {
		add("MemoryLow", uint64(r.MemoryReservation))
	}
	swap, err := lib.ConvertMemorySwapToCgroupV2Value(r.MemorySwap, r.Memory)
	if err != nil {
		return nil, err
	}
	if swap != 0 {
		add("MemorySwapMax", uint64(swap))
	}
	switch idle := r.CPUIdle != nil && *r.CPUIdle == 1 && version >= idleVersion; {
	case idle:
		add("CPUWeight", uint64(0)) // which is how systemd says it
	case r.CpuWeight != 0:
		add("CPUWeight", r.CpuWeight)
	}
	var quota []dbus.Property
	quota, r.CpuQuota = quotaProperties(r.CpuQuota, r.CpuPeriod)
	props = append(props, quota...)
	if r.PidsLimit != nil {
		add("TasksMax", tasks(*r.PidsLimit))
	}
	sets, err := setProperties(map[string]string{"cpuset.cpus": r.CpusetCpus, "cpuset.mems": r.CpusetMems})
	if err != nil {
		return nil, err
	}
	more, err := fileProperties(r.Unified, version)
	return slices.Concat(props, sets, more), err
}

// tasks has at least one process, as systemd wants it.
func tasks(limit int64) uint64 {
	if limit < 0 {
		return systemd.Infinity
	}
	return max(uint64(limit), 1)
}

// quotaProperties counts in hundredths of a processor, rounded up, and returns the quota that is.
func quotaProperties(quota int64, period uint64) (props []dbus.Property, rounded int64) {
	if period != 0 {
		props = append(props, systemd.Property("CPUQuotaPeriodUSec", period))
	}
	if quota == 0 && period == 0 {
		return nil, quota
	}
	perSecond := systemd.Infinity
	if quota > 0 {
		if period == 0 {
			period = cgroups.DefaultPeriodUs
		}
		perSecond = systemd.PerSecond(quota, period)
		if exact := uint64(quota) * 1_000_000 / period; perSecond != exact {
			quota = int64(perSecond) * int64(period) / 1_000_000
		}
	}
	return append(props, systemd.Property("CPUQuotaPerSecUSec", perSecond)), quota
}

func setProperties(lists map[string]string) (props []dbus.Property, _ error) {
	names := map[string]string{"cpuset.cpus": "AllowedCPUs", "cpuset.mems": "AllowedMemoryNodes"}
	for file, list := range lists {
		if list == "" {
			continue
		}
		// The library would make a bit of each number of "0-4000000000".
		bits, is := systemd.CPUMask(list)
		if !is {
			return nil, fmt.Errorf("%s is no list of numbers: %q", file, list)
		}
		props = append(props, systemd.Property(names[file], bits))
	}
	return props, nil
}

// fileProperties are those files of v2 that systemd has words for.
func fileProperties(files map[string]string, version int) (props []dbus.Property, _ error) {
	names := map[string]string{
		"memory.high": "MemoryHigh", "memory.low": "MemoryLow", "memory.min": "MemoryMin", "memory.max": "MemoryMax",
		"memory.swap.max": "MemorySwapMax",
	}
	idle := strings.TrimSpace(files["cpu.idle"]) == "1" && version >= idleVersion
	for _, file := range slices.Sorted(maps.Keys(files)) {
		value := strings.TrimSpace(files[file])
		var more []dbus.Property
		var n uint64
		var err error
		switch {
		case names[file] != "":
			n, err = number(value)
			more = []dbus.Property{systemd.Property(names[file], n)}
		case file == "pids.max":
			n, err = number(value)
			more = []dbus.Property{systemd.Property("TasksMax", max(n, 1))}
		case file == "cpu.idle" && idle:
			more = []dbus.Property{systemd.Property("CPUWeight", uint64(0))}
		case file == "cpu.weight" && !idle:
			n, err = strconv.ParseUint(value, 10, 64)
			more = []dbus.Property{systemd.Property("CPUWeight", n)}
		case file == "cpu.max":
			more, err = bandwidth(value)
		case file == "cpuset.cpus" || file == "cpuset.mems":
			more, err = setProperties(map[string]string{file: value})
		}
		if err != nil {
			return nil, fmt.Errorf("%s is %q: %w", file, value, err)
		}
		props = append(props, more...)
	}
	return props, nil
}

// number is one, or "max".
func number(value string) (uint64, error) {
	if value = strings.TrimSpace(value); value == "max" {
		return systemd.Infinity, nil
	}
	return strconv.ParseUint(value, 10, 64)
}

// bandwidth reads cpu.max: a quota or "max", and a period.
func bandwidth(value string) ([]dbus.Property, error) {
	words := strings.Fields(value)
	if len(words) < 1 || len(words) > 2 {
		return nil, strconv.ErrSyntax
	}
	quota, period := int64(0), uint64(cgroups.DefaultPeriodUs)
	var err error
	if words[0] != "max" {
		quota, err = strconv.ParseInt(words[0], 10, 64)
	}
	if err == nil && len(words) == 2 {
		period, err = strconv.ParseUint(words[1], 10, 64)
	}
	if err == nil && period == 0 {
		err = strconv.ErrRange
	}
	props, _ := quotaProperties(quota, period)
	return props, err
}

func oomPolicy(value string) ([]dbus.Property, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("memory.oom.group is %q: %w", value, err)
	}
	if n > 1 {
		return nil, nil
	}
	return []dbus.Property{systemd.Property("OOMPolicy", []string{"continue", "kill"}[n])}, nil
}
