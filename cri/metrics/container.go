package metrics

import (
	"slices"
	"strconv"

	"github.com/berth-node/berth/cgroups"
)

func containerFamilies() []family[Container] {
	return slices.Concat(cpuFamilies(), memoryFamilies(), diskFamilies(), processFamilies(), specFamilies(), pressureFamilies())
}

func cpuFamilies() []family[Container] {
	usage := family[Container]{
		name: "container_cpu_usage_seconds_total", help: "Cumulative CPU time consumed in seconds.", kind: counter, labels: []string{"cpu"},
		values: func(c *Container) []value { return []value{{secondsOf(c.Usage.CPU.UsageNs), []string{"total"}}} },
	}
	return []family[Container]{
		usage,
		one("container_cpu_user_seconds_total", "Cumulative user CPU time consumed in seconds.", counter, func(c *Container) uint64 { return secondsOf(c.Usage.CPU.UserNs) }),
		one("container_cpu_system_seconds_total", "Cumulative system CPU time consumed in seconds.", counter, func(c *Container) uint64 { return secondsOf(c.Usage.CPU.SystemNs) }),
		one("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", counter, func(c *Container) uint64 { return c.Usage.CPU.Periods }),
		one("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", counter, func(c *Container) uint64 { return c.Usage.CPU.ThrottledPeriods }),
		one("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", counter, func(c *Container) uint64 { return secondsOf(c.Usage.CPU.ThrottledNs) }),
	}
}

func memoryFamilies() []family[Container] {
	mem := func(name, help string, pick func(*cgroups.Memory) uint64) family[Container] {
		return one("container_memory_"+name, help, gauge, func(c *Container) uint64 { return pick(&c.Usage.Memory) })
	}
	// A container's group has none below it that is not its own, so that both scopes are one.
	failures := family[Container]{
		name: "container_memory_failures_total", help: "Cumulative count of memory allocation failures.", kind: counter, labels: []string{"failure_type", "scope"},
		values: func(c *Container) []value {
			m := &c.Usage.Memory
			return []value{
				{m.PageFaults, []string{"pgfault", "container"}},
				{m.PageFaults, []string{"pgfault", "hierarchy"}},
				{m.MajorFaults, []string{"pgmajfault", "container"}},
				{m.MajorFaults, []string{"pgmajfault", "hierarchy"}},
			}
		},
	}
	return []family[Container]{
		mem("cache", "Number of bytes of page cache memory.", func(m *cgroups.Memory) uint64 { return m.Cache }),
		mem("rss", "Size of RSS in bytes.", func(m *cgroups.Memory) uint64 { return m.RSS }),
		one("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", gauge, func(c *Container) uint64 { return c.Detail.KernelMemory }),
		mem("mapped_file", "Size of memory mapped files in bytes.", func(m *cgroups.Memory) uint64 { return m.MappedFile }),
		mem("swap", "Container swap usage in bytes.", func(m *cgroups.Memory) uint64 { return m.Swap }),
		one("container_memory_failcnt", "Number of memory usage hits limits", counter, func(c *Container) uint64 { return c.Usage.Memory.LimitHits }),
		mem("usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", func(m *cgroups.Memory) uint64 { return m.Usage }),
		mem("max_usage_bytes", "Maximum memory usage recorded in bytes", func(m *cgroups.Memory) uint64 { return m.Peak }),
		mem("working_set_bytes", "Current working set in bytes.", func(m *cgroups.Memory) uint64 { return m.WorkingSet }),
		mem("total_active_file_bytes", "Current total active file in bytes.", func(m *cgroups.Memory) uint64 { return m.ActiveFile }),
		mem("total_inactive_file_bytes", "Current total inactive file in bytes.", func(m *cgroups.Memory) uint64 { return m.InactiveFile }),
		failures,
		one("container_oom_events_total", "Count of out of memory events observed for the container", counter, func(c *Container) uint64 { return c.Usage.Memory.OOMKills }),
		hugepages("usage_bytes", "Current hugepage usage", func(p *cgroups.Hugepages) uint64 { return p.Usage }),
		hugepages("max_usage_bytes", "Maximum hugepage usages recorded", func(p *cgroups.Hugepages) uint64 { return p.Max }),
	}
}

func hugepages(name, help string, pick func(*cgroups.Hugepages) uint64) family[Container] {
	return family[Container]{
		name: "container_hugetlb_" + name, help: help, kind: gauge, labels: []string{"pagesize"},
		needs: func(m Machine) bool { return m.Hugepages },
		values: func(c *Container) []value {
			var out []value
			for _, p := range c.Detail.Hugepages {
				out = append(out, value{pick(&p), []string{p.Size}})
			}
			return out
		},
	}
}

func diskFamilies() []family[Container] {
	fs := func(name, help string, pick func(*Filesystem) uint64) family[Container] {
		return family[Container]{name: "container_fs_" + name, help: help, kind: gauge, labels: []string{"device"}, values: func(c *Container) []value {
			if !c.Filesystem.Known {
				return nil
			}
			return []value{{pick(&c.Filesystem), []string{c.Filesystem.Device}}}
		}}
	}
	io := func(name, help string, pick func(*cgroups.IO) uint64) family[Container] {
		return family[Container]{name: "container_fs_" + name, help: help, kind: counter, labels: []string{"device"}, values: func(c *Container) []value {
			var out []value
			for _, d := range c.Detail.Devices {
				out = append(out, value{pick(&d.IO), []string{c.device(d)}})
			}
			return out
		}}
	}
	blkio := family[Container]{
		name: "container_blkio_device_usage_total", help: "Blkio device bytes usage", kind: counter, labels: []string{"device", "major", "minor", "operation"},
		values: func(c *Container) []value {
			var out []value
			for _, d := range c.Detail.Devices {
				name, major, minor := c.device(d), strconv.FormatUint(uint64(d.Major), 10), strconv.FormatUint(uint64(d.Minor), 10)
				out = append(out, value{d.ReadBytes, []string{name, major, minor, "Read"}}, value{d.WriteBytes, []string{name, major, minor, "Write"}})
			}
			return out
		},
	}
	return []family[Container]{
		fs("inodes_free", "Number of available Inodes", func(f *Filesystem) uint64 { return f.FreeInodes }),
		fs("inodes_total", "Number of Inodes", func(f *Filesystem) uint64 { return f.Inodes }),
		fs("limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", func(f *Filesystem) uint64 { return f.Size }),
		fs("usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", func(f *Filesystem) uint64 { return f.Used }),
		io("reads_bytes_total", "Cumulative count of bytes read", func(i *cgroups.IO) uint64 { return i.ReadBytes }),
		io("reads_total", "Cumulative count of reads completed", func(i *cgroups.IO) uint64 { return i.ReadOps }),
		io("writes_bytes_total", "Cumulative count of bytes written", func(i *cgroups.IO) uint64 { return i.WriteBytes }),
		io("writes_total", "Cumulative count of writes completed", func(i *cgroups.IO) uint64 { return i.WriteOps }),
		blkio,
	}
}

func (c *Container) device(d cgroups.DeviceIO) string {
	if c.Name != nil {
		if name := c.Name(d.Major, d.Minor); name != "" {
			return name
		}
	}
	return deviceNumber(d.Major, d.Minor)
}

func processFamilies() []family[Container] {
	ulimits := family[Container]{
		name: "container_ulimits_soft", help: "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice", kind: gauge, labels: []string{"ulimit"},
		values: func(c *Container) []value {
			return []value{{c.Processes.OpenFilesLimit, []string{"max_open_files"}}}
		},
	}
	return []family[Container]{
		one("container_processes", "Number of processes running inside the container.", gauge, func(c *Container) uint64 { return c.Processes.Count }),
		one("container_file_descriptors", "Number of open file descriptors for the container.", gauge, func(c *Container) uint64 { return c.Processes.Files }),
		one("container_sockets", "Number of open sockets for the container.", gauge, func(c *Container) uint64 { return c.Processes.Sockets }),
		one("container_threads", "Number of threads running inside the container", gauge, func(c *Container) uint64 { return c.Usage.Pids.Current }),
		one("container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", gauge, func(c *Container) uint64 { return limit(c.Usage.Pids.Limit) }),
		ulimits,
		one("container_last_seen", "Last time a container was seen by the exporter", gauge, func(c *Container) uint64 { return unixOf(c.Seen) }),
		one("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", gauge, func(c *Container) uint64 { return unixOf(c.Started) }),
	}
}

func specFamilies() []family[Container] {
	return []family[Container]{
		one("container_spec_cpu_period", "CPU period of the container.", gauge, func(c *Container) uint64 { return c.Detail.CPUPeriodUs }),
		one("container_spec_cpu_quota", "CPU quota of the container.", gauge, func(c *Container) uint64 { return c.Detail.CPUQuotaUs }),
		one("container_spec_cpu_shares", "CPU share of the container.", gauge, func(c *Container) uint64 { return c.Detail.CPUShares }),
		one("container_spec_memory_limit_bytes", "Memory limit for the container.", gauge, func(c *Container) uint64 { return limit(c.Usage.Memory.Limit) }),
		one("container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", gauge, func(c *Container) uint64 { return c.Detail.Reservation }),
		one("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", gauge, func(c *Container) uint64 { return limit(c.Detail.SwapLimit) }),
	}
}

func pressureFamilies() []family[Container] {
	stall := func(name, help string, pick func(*cgroups.PSI) cgroups.Stall) family[Container] {
		return family[Container]{
			name: "container_pressure_" + name + "_seconds_total", help: help, kind: counter, needs: func(m Machine) bool { return m.Pressure },
			values: func(c *Container) []value {
				if c.Usage.PSI == nil {
					return nil
				}
				return []value{{n: pick(c.Usage.PSI).TotalUs / 1e6}}
			},
		}
	}
	const waiting, stalled = "Total time duration tasks in the container have waited due to ", "Total time duration no tasks in the container could make progress due to "
	return []family[Container]{
		stall("cpu_waiting", waiting+"CPU congestion.", func(p *cgroups.PSI) cgroups.Stall { return p.CPU.Some }),
		stall("cpu_stalled", stalled+"CPU congestion.", func(p *cgroups.PSI) cgroups.Stall { return p.CPU.Full }),
		stall("memory_waiting", waiting+"memory congestion.", func(p *cgroups.PSI) cgroups.Stall { return p.Memory.Some }),
		stall("memory_stalled", stalled+"memory congestion.", func(p *cgroups.PSI) cgroups.Stall { return p.Memory.Full }),
		stall("io_waiting", waiting+"IO congestion.", func(p *cgroups.PSI) cgroups.Stall { return p.IO.Some }),
		stall("io_stalled", stalled+"IO congestion.", func(p *cgroups.PSI) cgroups.Stall { return p.IO.Full }),
	}
}
