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
	last  Usage     // the sample before
	rare  time.Time // when every file was read
	moved bool
	oom   *oomBelow // v1
}

// rarely is how often every file is read whatever happens.
const rarely = 10 * time.Second

// when says in which samples a file is read.
type when uint8

const (
	// first files are read at every sample and tell whether the group lives: as long as neither CPU time nor memory moved, no task
	// of it ran and nothing else can have changed, so that an idle pod costs a few microseconds.
	first     when = 1 << iota
	always         // changes without the group running: pressure of waiting tasks
	ifRan          // changes when the group runs; what writeback still writes for one that sleeps is seen with the rare files
	ifCharged      // changes with the memory in use. To render memory.stat costs the kernel as much as all other files together
	rare           // limits and high-water marks
)

// statFile is one open kernel file and what to do with its contents.
type statFile struct {
	fd   int
	when when
	read func(data []byte, u *Usage) error
}

type statSource struct {
	controller, name string // controller "" is the v2 hierarchy
	when             when
	read             func(data []byte, u *Usage) error
}

// OpenSampler opens the group's files. Those the kernel lacks are left out; a group that does not exist is ENOENT.
func (h *Hierarchy) OpenSampler(path string) (*Sampler, error) {
	path = clean(path)
	if !h.Exists(path) {
		return nil, fmt.Errorf("measure group %s: %w", path, unix.ENOENT)
	}
	s := &Sampler{path: path, buf: make([]byte, 16<<10)}
	s.last.Memory.Limit, s.last.Pids.Limit = NoLimit, NoLimit // where the kernel has no such files
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
		s.files = append(s.files, statFile{fd: fd, when: src.when, read: src.read})
	}
	if h.mode != Unified {
		s.oom = openOOM(h.MemoryDir(path))
	}
	// A group that went meanwhile looks like a kernel that has none of the files.
	if !h.Exists(path) {
		s.Close()
		return nil, fmt.Errorf("measure group %s: %w", path, unix.ENOENT)
	}
	return s, nil
}

// Close releases the files.
func (s *Sampler) Close() {
	for _, f := range s.files {
		unix.Close(f.fd)
	}
	s.files = nil
	s.oom.close()
	s.oom = nil
}

// Refresh makes the next Sample read the limits again, for those who have just changed them.
func (s *Sampler) Refresh() { s.rare = time.Time{} }

// Moved says whether the last sample differed from the one before in what tells of life: CPU time, memory or pressure. A group
// that did not move has no group below it that did, so that a tree need not be read further down.
func (s *Sampler) Moved() bool { return s.moved }

// Sample fills u. A group removed meanwhile gives ENODEV, as the kernel says it, and leaves in u what was read before.
func (s *Sampler) Sample(u *Usage) error {
	now := time.Now()
	*u = s.last
	u.Time, s.psi = now, nil
	if err := s.read(u, first); err != nil {
		return err
	}
	ran, charged := u.CPU.UsageNs != s.last.CPU.UsageNs, u.Memory.Usage != s.last.Memory.Usage
	due := always
	if ran {
		due |= ifRan
	}
	if charged {
		due |= ifRan | ifCharged
	}
	if now.Sub(s.rare) >= rarely {
		s.rare = now
		due = always | ifRan | ifCharged | rare
	}
	if err := s.read(u, due); err != nil {
		return err
	}
	if s.oom != nil && due&ifCharged != 0 {
		n, err := s.oom.kills(s)
		if err != nil {
			return fmt.Errorf("measure group %s: %w", s.path, err)
		}
		u.Memory.OOMKills = n
	}
	u.PSI = s.psi
	u.Memory.derive()
	s.moved = ran || charged || u.PSI.stalls() != s.last.PSI.stalls()
	s.last = *u
	return nil
}

// read reads the files whose turn it is.
func (s *Sampler) read(u *Usage, due when) error {
	for _, f := range s.files {
		if f.when&due == 0 {
			continue
		}
		data, err := s.pread(f.fd)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue // PSI switched off for this group (cgroup.pressure) or on the command line
		}
		if err == nil {
			err = f.read(data, u)
		}
		if err != nil {
			return fmt.Errorf("measure group %s: %w", s.path, err)
		}
	}
	return nil
}

// pread reads a whole file with one system call. Asking again for an end of file would make the kernel render everything a
// second time, which for memory.stat is most of the cost of a sample; these files come in one piece if it fits.
func (s *Sampler) pread(fd int) ([]byte, error) {
	for {
		n, err := retryInt(func() (int, error) { return unix.Pread(fd, s.buf, 0) })
		if err != nil {
			return nil, err
		}
		if n < len(s.buf) {
			return s.buf[:n], nil
		}
		s.buf = make([]byte, 2*len(s.buf)) // io.stat has a line for each device
	}
}

// derive computes what kubelet computes. inactive_file may exceed usage for a moment, as the two are not read together.
func (m *Memory) derive() {
	m.WorkingSet = 0
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
		{"", "cpu.pressure", always, at(func(p *PSI) *Pressure { return &p.CPU })},
		{"", "memory.pressure", always, at(func(p *PSI) *Pressure { return &p.Memory })},
		{"", "io.pressure", always, at(func(p *PSI) *Pressure { return &p.IO })},
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
		{"cpuacct", "cpuacct.usage", first, number(func(u *Usage) *uint64 { return &u.CPU.UsageNs })},
		{"cpuacct", "cpuacct.usage_user", ifRan, number(func(u *Usage) *uint64 { return &u.CPU.UserNs })},
		{"cpuacct", "cpuacct.usage_sys", ifRan, number(func(u *Usage) *uint64 { return &u.CPU.SystemNs })},
		{"cpu", "cpu.stat", ifRan, keyed(v1CPUStat)},
		{"memory", "memory.stat", ifCharged, keyed(v1MemoryStat)},
		{"memory", "memory.usage_in_bytes", first, number(func(u *Usage) *uint64 { return &u.Memory.Usage })},
		{"memory", "memory.limit_in_bytes", rare, number(func(u *Usage) *uint64 { return &u.Memory.Limit })},
		{"memory", "memory.max_usage_in_bytes", rare, number(func(u *Usage) *uint64 { return &u.Memory.Peak })},
		{"memory", "memory.failcnt", rare, number(func(u *Usage) *uint64 { return &u.Memory.LimitHits })},
		{"memory", "memory.memsw.failcnt", rare, func(data []byte, u *Usage) error {
			n, err := parseNumber(data) // without swap the sum runs into its limit first, and only this one counts
			u.Memory.LimitHits += n
			return err
		}},
		{"pids", "pids.current", ifRan, number(func(u *Usage) *uint64 { return &u.Pids.Current })},
		{"pids", "pids.max", rare, number(func(u *Usage) *uint64 { return &u.Pids.Limit })},
		{"blkio", "blkio.throttle.io_service_bytes_recursive", ifRan, func(data []byte, u *Usage) error {
			u.IO.ReadBytes, u.IO.WriteBytes = parseBlkio(data)
			return nil
		}},
		{"blkio", "blkio.throttle.io_serviced_recursive", ifRan, func(data []byte, u *Usage) error {
			u.IO.ReadOps, u.IO.WriteOps = parseBlkio(data)
			return nil
		}},
	}
}

func v2Sources() []statSource {
	return []statSource{
		{"", "cpu.stat", first, keyed(v2CPUStat)},
		{"", "memory.stat", ifCharged, keyed(v2MemoryStat)},
		{"", "memory.current", first, number(func(u *Usage) *uint64 { return &u.Memory.Usage })},
		{"", "memory.max", rare, number(func(u *Usage) *uint64 { return &u.Memory.Limit })},
		{"", "memory.peak", rare, number(func(u *Usage) *uint64 { return &u.Memory.Peak })},
		{"", "memory.swap.current", ifCharged, number(func(u *Usage) *uint64 { return &u.Memory.Swap })},
		{"", "memory.events", ifCharged, keyed(v2MemoryEvents)},
		{"", "pids.current", ifRan, number(func(u *Usage) *uint64 { return &u.Pids.Current })},
		{"", "pids.max", rare, number(func(u *Usage) *uint64 { return &u.Pids.Limit })},
		{"", "io.stat", ifRan, func(data []byte, u *Usage) error {
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
