package cgroups

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Stat measures a group once. Who measures again and again keeps a Sampler.
func (h *Hierarchy) Stat(path string) (Usage, error) {
	var u Usage
	s, err := h.OpenSampler(path)
	if err != nil {
		return u, err
	}
	defer s.Close()
	err = s.Sample(&u)
	return u, err
}

// Sampler measures one group repeatedly: its files stay open and are read with pread, which makes the kernel render them
// anew. It costs about a dozen descriptors a group. Not safe for concurrent use.
type Sampler struct {
	path  string
	files []statFile
	buf   []byte
	psi   *PSI
}

// statFile is one open kernel file and what to do with its contents.
type statFile struct {
	fd   int
	read func(data []byte, u *Usage) error
}

type statSource struct {
	controller, name string // controller "" is the v2 hierarchy
	read             func(data []byte, u *Usage) error
}

// OpenSampler opens the group's files. Those the kernel lacks are left out; a group that does not exist is ENOENT.
func (h *Hierarchy) OpenSampler(path string) (*Sampler, error) {
	path = clean(path)
	if !h.Exists(path) {
		return nil, fmt.Errorf("measure group %s: %w", path, unix.ENOENT)
	}
	s := &Sampler{path: path, buf: make([]byte, 16<<10)}
	sources := v1Sources()
	if h.mode == Unified {
		sources = v2Sources()
	}
	if h.unified != "" {
		sources = append(sources, s.pressureSources()...)
	}
	for _, src := range sources {
		dir := h.Dir(src.controller, path)
		if dir == "" {
			continue
		}
		fd, err := retryInt(func() (int, error) { return unix.Open(dir+"/"+src.name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("open %s/%s: %w", dir, src.name, err)
		}
		s.files = append(s.files, statFile{fd: fd, read: src.read})
	}
	return s, nil
}

// Close releases the files.
func (s *Sampler) Close() {
	for _, f := range s.files {
		unix.Close(f.fd)
	}
	s.files = nil
}

// Sample fills u. A group removed meanwhile gives ENODEV, as the kernel says it.
func (s *Sampler) Sample(u *Usage) error {
	*u = Usage{Time: time.Now(), Memory: Memory{Limit: NoLimit}, Pids: Pids{Limit: NoLimit}}
	s.psi = nil
	for _, f := range s.files {
		n, err := pread(f.fd, s.buf)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue // PSI switched off for this group (cgroup.pressure) or on the command line
		}
		if err != nil {
			return fmt.Errorf("measure group %s: %w", s.path, err)
		}
		if n == len(s.buf) {
			s.buf = make([]byte, 2*len(s.buf)) // io.stat has a line for each device
			if n, err = pread(f.fd, s.buf); err != nil {
				return fmt.Errorf("measure group %s: %w", s.path, err)
			}
		}
		if err := f.read(s.buf[:n], u); err != nil {
			return fmt.Errorf("measure group %s: %w", s.path, err)
		}
	}
	u.PSI = s.psi
	u.Memory.derive()
	return nil
}

// derive computes what kubelet computes. inactive_file may exceed usage for a moment, as the two are not read together.
func (m *Memory) derive() {
	if m.InactiveFile < m.Usage {
		m.WorkingSet = m.Usage - m.InactiveFile
	}
	m.Available = NoLimit
	if m.Limit != NoLimit {
		m.Available = 0
		if m.WorkingSet < m.Limit {
			m.Available = m.Limit - m.WorkingSet
		}
	}
}

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
		{"", "cpu.pressure", at(func(p *PSI) *Pressure { return &p.CPU })},
		{"", "memory.pressure", at(func(p *PSI) *Pressure { return &p.Memory })},
		{"", "io.pressure", at(func(p *PSI) *Pressure { return &p.IO })},
	}
}

// number reads a one-number file into where pick says.
func number(pick func(*Usage) *uint64) func([]byte, *Usage) error {
	return func(data []byte, u *Usage) error {
		n, err := parseNumber(data)
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

func v1Sources() []statSource {
	return []statSource{
		{"cpuacct", "cpuacct.usage", number(func(u *Usage) *uint64 { return &u.CPU.UsageNs })},
		{"cpuacct", "cpuacct.usage_user", number(func(u *Usage) *uint64 { return &u.CPU.UserNs })},
		{"cpuacct", "cpuacct.usage_sys", number(func(u *Usage) *uint64 { return &u.CPU.SystemNs })},
		{"cpu", "cpu.stat", keyed(v1CPUStat)},
		{"memory", "memory.stat", keyed(v1MemoryStat)},
		{"memory", "memory.usage_in_bytes", number(func(u *Usage) *uint64 { return &u.Memory.Usage })},
		{"memory", "memory.limit_in_bytes", number(func(u *Usage) *uint64 { return &u.Memory.Limit })},
		{"memory", "memory.max_usage_in_bytes", number(func(u *Usage) *uint64 { return &u.Memory.Peak })},
		{"memory", "memory.failcnt", number(func(u *Usage) *uint64 { return &u.Memory.LimitHits })},
		{"memory", "memory.memsw.failcnt", func(data []byte, u *Usage) error {
			n, err := parseNumber(data) // without swap the sum runs into its limit first, and only this one counts
			u.Memory.LimitHits += n
			return err
		}},
		{"memory", "memory.oom_control", keyed(v1OOM)},
		{"pids", "pids.current", number(func(u *Usage) *uint64 { return &u.Pids.Current })},
		{"pids", "pids.max", number(func(u *Usage) *uint64 { return &u.Pids.Limit })},
		{"blkio", "blkio.throttle.io_service_bytes_recursive", func(data []byte, u *Usage) error {
			u.IO.ReadBytes, u.IO.WriteBytes = parseBlkio(data)
			return nil
		}},
		{"blkio", "blkio.throttle.io_serviced_recursive", func(data []byte, u *Usage) error {
			u.IO.ReadOps, u.IO.WriteOps = parseBlkio(data)
			return nil
		}},
	}
}

func v2Sources() []statSource {
	return []statSource{
		{"", "cpu.stat", keyed(v2CPUStat)},
		{"", "memory.stat", keyed(v2MemoryStat)},
		{"", "memory.current", number(func(u *Usage) *uint64 { return &u.Memory.Usage })},
		{"", "memory.max", number(func(u *Usage) *uint64 { return &u.Memory.Limit })},
		{"", "memory.peak", number(func(u *Usage) *uint64 { return &u.Memory.Peak })},
		{"", "memory.swap.current", number(func(u *Usage) *uint64 { return &u.Memory.Swap })},
		{"", "memory.events", keyed(v2MemoryEvents)},
		{"", "pids.current", number(func(u *Usage) *uint64 { return &u.Pids.Current })},
		{"", "pids.max", number(func(u *Usage) *uint64 { return &u.Pids.Limit })},
		{"", "io.stat", func(data []byte, u *Usage) error {
			parseIOStat(data, &u.IO)
			return nil
		}},
	}
}

func v1CPUStat(k string, u *Usage) (*uint64, uint64) {
	switch k {
	case "nr_periods":
		return &u.CPU.Periods, 1
	case "nr_throttled":
		return &u.CPU.ThrottledPeriods, 1
	case "throttled_time":
		return &u.CPU.ThrottledNs, 1
	case "nr_bursts":
		return &u.CPU.Bursts, 1
	case "burst_time":
		return &u.CPU.BurstNs, 1
	}
	return nil, 0
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

func v1OOM(k string, u *Usage) (*uint64, uint64) {
	if k == "oom_kill" {
		return &u.Memory.OOMKills, 1
	}
	return nil, 0
}

func v2CPUStat(k string, u *Usage) (*uint64, uint64) {
	const us = 1000 // v2 counts in microseconds
	switch k {
	case "usage_usec":
		return &u.CPU.UsageNs, us
	case "user_usec":
		return &u.CPU.UserNs, us
	case "system_usec":
		return &u.CPU.SystemNs, us
	case "nr_periods":
		return &u.CPU.Periods, 1
	case "nr_throttled":
		return &u.CPU.ThrottledPeriods, 1
	case "throttled_usec":
		return &u.CPU.ThrottledNs, us
	case "nr_bursts":
		return &u.CPU.Bursts, 1
	case "burst_usec":
		return &u.CPU.BurstNs, us
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
