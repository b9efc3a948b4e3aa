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
	s.last = unlimited()
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

// Alone makes v1's count of OOM kills that of the group alone, which without this is summed up over all groups below it: far too
// many for groups near the root.
func (s *Sampler) Alone() {
	s.oom.alone()
}

// unlimited stands where the kernel has no files of limits.
func unlimited() Usage {
	return Usage{CPU: CPU{QuotaUs: NoLimit}, Memory: Memory{Limit: NoLimit, SwapLimit: NoLimit}, Pids: Pids{Limit: NoLimit}}
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
