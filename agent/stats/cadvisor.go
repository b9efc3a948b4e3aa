package stats

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/topology"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// Cadvisor is /metrics/cadvisor: groups from the root down to containers, under the names that kubelet has from
// cAdvisor.
func (c *Collector) Cadvisor(version string) prometheus.Gatherer {
	return gatherer(func(to *page) {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		failed := to.family("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise", gauge)
		s, err := c.Snapshot(ctx, false)
		if err != nil {
			failed.put(time.Time{}, 1)
			return
		}
		failed.put(time.Time{}, 0)
		to.family("cadvisor_version_info", "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.", gauge,
			"cadvisorRevision", "cadvisorVersion", "dockerVersion", "kernelVersion", "osVersion").put(time.Time{}, 1, "", "berth "+version, "", kernelVersion(), "")
		c.machine(s, to)
		l := c.disks()
		tables := groupTables(to)
		seen := map[string]bool{}
		defer func() { c.io.keep(seen) }()
		put := func(f *Figures, x extra) {
			if !f.Known {
				return
			}
			seen[f.Path] = true
			for _, d := range c.io.get(c.cfg.Groups, f) {
				x.devices = append(x.devices, namedDevice{d, c.io.name(d.Major, d.Minor)})
			}
			own := pairs(groupLabels, []string{x.container, f.Path, x.image, x.name, x.namespace, x.pod})
			for i := range tables {
				tables[i].put(f, &x, own)
			}
		}
		put(&s.Node.Figures, extra{Figures: &s.Node.Figures, disk: l.node, interfaces: s.Node.Network, started: s.Node.Started, at: s.Time})
		for i := range s.Classes {
			put(&s.Classes[i], extra{started: s.Node.Started, at: s.Time, noKills: c.cfg.Groups.Mode() != cgroups.Unified})
		}
		for i := range s.Pods {
			p := &s.Pods[i]
			x := extra{namespace: p.Pod.Namespace, pod: p.Pod.Name, interfaces: p.Network, at: s.Time}
			if t := p.Pod.Status.StartTime; t != nil {
				x.started = t.Time
			}
			put(&p.Figures, x)
			for j := range p.Containers {
				r := &p.Containers[j]
				put(&r.Figures, extra{
					namespace: x.namespace, pod: x.pod, container: r.Name, image: r.Image, name: r.ID,
					started: r.Started, at: s.Time, disk: l.of[r.ID], spec: r.Spec,
				})
			}
		}
	})
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// layoutAge is how old the layout of the machine's CPUs may be: some are switched off and on.
const layoutAge = 5 * time.Minute

func readLayout(context.Context) *topology.Machine {
	m, err := topology.Read("/")
	if err != nil {
		return nil
	}
	return m
}

func (c *Collector) machine(s *Snapshot, to *page) {
	labels := []string{"boot_id", "machine_id", "system_uuid"}
	values := []string{oneLine("/proc/sys/kernel/random/boot_id"), oneLine("/etc/machine-id"), oneLine("/sys/class/dmi/id/product_uuid")}
	to.family("machine_cpu_cores", "Number of logical CPU cores.", gauge, labels...).put(time.Time{}, float64(s.Node.Cores), values...)
	to.family("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise.", gauge).put(time.Time{}, 0)
	if m := c.layout.get(c.aside, layoutAge, patient, readLayout); m != nil {
		cores := m.Groups(func(c topology.CPU) int { return c.Core })
		sockets := m.Groups(func(c topology.CPU) int { return c.Socket })
		to.family("machine_cpu_physical_cores", "Number of physical CPU cores.", gauge, labels...).put(time.Time{}, float64(len(cores)), values...)
		to.family("machine_cpu_sockets", "Number of CPU sockets.", gauge, labels...).put(time.Time{}, float64(len(sockets)), values...)
	}
	to.family("machine_memory_bytes", "Amount of memory installed on the machine.", gauge, labels...).put(time.Time{}, float64(c.cfg.Memory), values...)
	to.family("machine_swap_bytes", "Amount of swap memory available on the machine.", gauge, labels...).put(time.Time{}, float64(s.Node.SwapTotal), values...)
}

// extra is what of a group is not in its files.
type extra struct {
	*Figures
	namespace, pod, container, image, name string
	interfaces                             []Interface
	started, at                            time.Time
	disk                                   Disk
	spec                                   *corev1.Container
	noKills                                bool // its OOM kills are not known
	devices                                []namedDevice
}

type namedDevice struct {
	cgroups.DeviceIO
	name string
}

// groupLabels are those of every metric of groups, which may have more.
var groupLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

// table is one metric of groups: its values of one group, each with the values of its further labels.
type table struct {
	*family
	values func(f *Figures, x *extra, emit emitter)
}

func (t *table) put(f *Figures, x *extra, own []*dto.LabelPair) {
	t.values(f, x, func(v float64, labels ...string) {
		all := own
		if len(labels) > 0 {
			all = append(slices.Clip(own), pairs(t.labels, labels)...)
		}
		t.putPairs(f.Usage.Time, v, all)
	})
}

type emitter = func(v float64, labels ...string)

// groupTables are the metrics of groups.
func groupTables(to *page) []table {
	var out []table
	add := func(name, help string, kind prometheus.ValueType, values func(*Figures, *extra, emitter), labels ...string) {
		out = append(out, table{to.family(name, help, kind, labels...), values})
	}
	plain := func(name, help string, kind prometheus.ValueType, pick func(*cgroups.Usage) float64) {
		add(name, help, kind, func(f *Figures, _ *extra, emit emitter) { emit(pick(&f.Usage)) })
	}
	addCPU(add, plain)
	addMemory(add, plain)
	addPressure(add)
	addIO(add)
	addNetwork(add)
	addLife(add)
	return out
}

type (
	addFunc   = func(name, help string, kind prometheus.ValueType, values func(*Figures, *extra, emitter), labels ...string)
	plainFunc = func(name, help string, kind prometheus.ValueType, pick func(*cgroups.Usage) float64)
)

func addCPU(add addFunc, plain plainFunc) {
	add("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", counter, func(f *Figures, _ *extra, emit emitter) {
		emit(seconds(f.Usage.CPU.UsageNs), "total")
	}, "cpu")
	plain("container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", counter, func(u *cgroups.Usage) float64 { return seconds(u.CPU.UserNs) })
	plain("container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", counter, func(u *cgroups.Usage) float64 { return seconds(u.CPU.SystemNs) })
	limited := func(pick func(*cgroups.CPU) float64) func(*Figures, *extra, emitter) {
		return func(f *Figures, _ *extra, emit emitter) {
			if f.Usage.CPU.Periods > 0 {
				emit(pick(&f.Usage.CPU))
			}
		}
	}
	add("container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", counter, limited(func(c *cgroups.CPU) float64 { return float64(c.Periods) }))
	add("container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", counter, limited(func(c *cgroups.CPU) float64 { return float64(c.ThrottledPeriods) }))
	add("container_cpu_cfs_throttled_seconds_total", "Total time duration the container has been throttled.", counter, limited(func(c *cgroups.CPU) float64 { return seconds(c.ThrottledNs) }))
	add("container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", counter, limited(func(c *cgroups.CPU) float64 { return float64(c.Bursts) }))
	add("container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", counter, limited(func(c *cgroups.CPU) float64 { return seconds(c.BurstNs) }))
}

func addMemory(add addFunc, plain plainFunc) {
	for _, m := range []struct {
		name, help string
		kind       prometheus.ValueType
		pick       func(*cgroups.Memory) uint64
	}{
		{"container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", gauge, func(m *cgroups.Memory) uint64 { return m.Usage }},
		{"container_memory_working_set_bytes", "Current working set in bytes.", gauge, func(m *cgroups.Memory) uint64 { return m.WorkingSet }},
		{"container_memory_rss", "Size of RSS in bytes.", gauge, func(m *cgroups.Memory) uint64 { return m.RSS }},
		{"container_memory_cache", "Number of bytes of page cache memory.", gauge, func(m *cgroups.Memory) uint64 { return m.Cache }},
		{"container_memory_mapped_file", "Size of memory mapped files in bytes.", gauge, func(m *cgroups.Memory) uint64 { return m.MappedFile }},
		{"container_memory_swap", "Container swap usage in bytes.", gauge, func(m *cgroups.Memory) uint64 { return m.Swap }},
		{"container_memory_total_active_file_bytes", "Current total active file in bytes.", gauge, func(m *cgroups.Memory) uint64 { return m.ActiveFile }},
		{"container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", gauge, func(m *cgroups.Memory) uint64 { return m.InactiveFile }},
		{"container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", gauge, func(m *cgroups.Memory) uint64 { return m.Peak }},
		{"container_memory_failcnt", "Number of memory usage hits limits", counter, func(m *cgroups.Memory) uint64 { return m.LimitHits }},
	} {
		plain(m.name, m.help, m.kind, func(u *cgroups.Usage) float64 { return float64(m.pick(&u.Memory)) })
	}
	add("container_oom_events_total", "Count of out of memory events observed for the container", counter, func(f *Figures, x *extra, emit emitter) {
		if !x.noKills {
			emit(float64(f.Usage.Memory.OOMKills))
		}
	})
	add("container_memory_failures_total", "Cumulative count of memory allocation failures.", counter, func(f *Figures, _ *extra, emit emitter) {
		for _, scope := range []string{"container", "hierarchy"} {
			emit(float64(f.Usage.Memory.PageFaults), "pgfault", scope)
			emit(float64(f.Usage.Memory.MajorFaults), "pgmajfault", scope)
		}
	}, "failure_type", "scope")
}

func addPressure(add addFunc) {
	for _, r := range []struct {
		what, waiting, stalled string
		pick                   func(*cgroups.PSI) *cgroups.Pressure
	}{
		{"cpu", "Total time duration tasks in the container have waited due to CPU congestion.", "Total time duration no tasks in the container could make progress due to CPU congestion.", func(p *cgroups.PSI) *cgroups.Pressure { return &p.CPU }},
		{"memory", "Total time duration tasks in the container have waited due to memory congestion.", "Total time duration no tasks in the container could make progress due to memory congestion.", func(p *cgroups.PSI) *cgroups.Pressure { return &p.Memory }},
		{"io", "Total time duration tasks in the container have waited due to IO congestion.", "Total time duration no tasks in the container could make progress due to IO congestion.", func(p *cgroups.PSI) *cgroups.Pressure { return &p.IO }},
	} {
		total := func(pick func(*cgroups.Pressure) uint64) func(*Figures, *extra, emitter) {
			return func(f *Figures, _ *extra, emit emitter) {
				if f.Usage.PSI != nil {
					emit(seconds(pick(r.pick(f.Usage.PSI)) * uint64(time.Microsecond)))
				}
			}
		}
		add("container_pressure_"+r.what+"_waiting_seconds_total", r.waiting, counter, total(func(p *cgroups.Pressure) uint64 { return p.Some.TotalUs }))
		add("container_pressure_"+r.what+"_stalled_seconds_total", r.stalled, counter, total(func(p *cgroups.Pressure) uint64 { return p.Full.TotalUs }))
	}
}

func addIO(add addFunc) {
	for _, m := range []struct {
		name, help string
		pick       func(*cgroups.IO) uint64
	}{
		{"container_fs_reads_bytes_total", "Cumulative count of bytes read", func(i *cgroups.IO) uint64 { return i.ReadBytes }},
		{"container_fs_writes_bytes_total", "Cumulative count of bytes written", func(i *cgroups.IO) uint64 { return i.WriteBytes }},
		{"container_fs_reads_total", "Cumulative count of reads completed", func(i *cgroups.IO) uint64 { return i.ReadOps }},
		{"container_fs_writes_total", "Cumulative count of writes completed", func(i *cgroups.IO) uint64 { return i.WriteOps }},
	} {
		add(m.name, m.help, counter, func(_ *Figures, x *extra, emit emitter) {
			for i := range x.devices {
				emit(float64(m.pick(&x.devices[i].IO)), x.devices[i].name)
			}
		}, "device")
	}
	add("container_blkio_device_usage_total", "Blkio Device bytes usage", counter, func(_ *Figures, x *extra, emit emitter) {
		for i := range x.devices {
			d := &x.devices[i]
			emit(float64(d.ReadBytes), d.name, decimal(d.Major), decimal(d.Minor), "Read")
			emit(float64(d.WriteBytes), d.name, decimal(d.Major), decimal(d.Minor), "Write")
		}
	}, "device", "major", "minor", "operation")
	for _, m := range []struct {
		name, help string
		pick       func(*Disk) uint64
	}{
		{"container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", func(d *Disk) uint64 { return d.Used }},
		{"container_fs_limit_bytes", "Number of bytes that can be consumed by the container on this filesystem.", func(d *Disk) uint64 { return d.Capacity }},
		{"container_fs_inodes_free", "Number of available Inodes", func(d *Disk) uint64 { return d.InodesFree }},
		{"container_fs_inodes_total", "Number of Inodes", func(d *Disk) uint64 { return d.Inodes }},
	} {
		add(m.name, m.help, gauge, func(_ *Figures, x *extra, emit emitter) {
			if x.disk.Known {
				emit(float64(m.pick(&x.disk)), "")
			}
		}, "device")
	}
}

func addNetwork(add addFunc) {
	for _, m := range []struct {
		name, help string
		pick       func(*Interface) uint64
	}{
		{"container_network_receive_bytes_total", "Cumulative count of bytes received", func(i *Interface) uint64 { return i.RxBytes }},
		{"container_network_receive_packets_total", "Cumulative count of packets received", func(i *Interface) uint64 { return i.RxPackets }},
		{"container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", func(i *Interface) uint64 { return i.RxErrors }},
		{"container_network_receive_packets_dropped_total", "Cumulative count of packets dropped while receiving", func(i *Interface) uint64 { return i.RxDropped }},
		{"container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", func(i *Interface) uint64 { return i.TxBytes }},
		{"container_network_transmit_packets_total", "Cumulative count of packets transmitted", func(i *Interface) uint64 { return i.TxPackets }},
		{"container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", func(i *Interface) uint64 { return i.TxErrors }},
		{"container_network_transmit_packets_dropped_total", "Cumulative count of packets dropped while transmitting", func(i *Interface) uint64 { return i.TxDropped }},
	} {
		add(m.name, m.help, counter, func(_ *Figures, x *extra, emit emitter) {
			for i := range x.interfaces {
				emit(float64(m.pick(&x.interfaces[i])), x.interfaces[i].Name)
			}
		}, "interface")
	}
}

// addLife has what the group may do and since when it does.
func addLife(add addFunc) {
	add("container_processes", "Number of processes running inside the container.", gauge, func(f *Figures, _ *extra, emit emitter) { emit(float64(f.Processes)) })
	add("container_threads", "Number of threads running inside the container", gauge, func(f *Figures, _ *extra, emit emitter) { emit(float64(f.Usage.Pids.Current)) })
	add("container_threads_max", "Maximum number of threads allowed inside the container, infinity if value is zero", gauge, func(f *Figures, _ *extra, emit emitter) {
		emit(unlimited(f.Usage.Pids.Limit))
	})
	add("container_last_seen", "Last time a container was seen by the exporter", gauge, func(_ *Figures, x *extra, emit emitter) { emit(float64(x.at.Unix())) })
	add("container_start_time_seconds", "Start time of the container since unix epoch in seconds.", gauge, func(_ *Figures, x *extra, emit emitter) {
		if !x.started.IsZero() {
			emit(float64(x.started.Unix()))
		}
	})
	add("container_spec_memory_limit_bytes", "Memory limit for the container.", gauge, func(f *Figures, _ *extra, emit emitter) { emit(unlimited(f.Usage.Memory.Limit)) })
	add("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", gauge, func(f *Figures, _ *extra, emit emitter) { emit(unlimited(f.Usage.Memory.SwapLimit)) })
	add("container_spec_cpu_period", "CPU period of the container.", gauge, func(f *Figures, _ *extra, emit emitter) {
		if f.Usage.CPU.PeriodUs > 0 {
			emit(float64(f.Usage.CPU.PeriodUs))
		}
	})
	add("container_spec_cpu_quota", "CPU quota of the container.", gauge, func(f *Figures, _ *extra, emit emitter) {
		if q := f.Usage.CPU.QuotaUs; q != cgroups.NoLimit && q > 0 {
			emit(float64(q))
		}
	})
	add("container_spec_cpu_shares", "CPU share of the container.", gauge, func(_ *Figures, x *extra, emit emitter) {
		if x.spec != nil {
			emit(float64(kube.Shares(x.spec.Resources.Requests.Cpu().MilliValue())))
		}
	})
}

// unlimited is 0, as dashboards know it.
func unlimited(v uint64) float64 {
	if v == cgroups.NoLimit {
		return 0
	}
	return float64(v)
}
