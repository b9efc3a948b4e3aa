package cgroups

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/internal/kernfs"
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

// Sampler measures one group repeatedly: its files stay open and are read with pread, which makes the kernel render
// them again. It costs about a dozen descriptors a group. Not safe for concurrent use.
type Sampler struct {
	path     string
	files    []statFile
	buf      []byte // while it samples
	psi      *PSI
	last     Usage     // the sample before
	whole    seen      // at the one before that was not brief
	allAt    time.Time // when every file was read
	limitsAt time.Time // when the limits were
	moved    bool
	peak     bool      // memory has moved since the high-water marks were read
	oom      *oomBelow // v1
	kills    uint64    // on the machine, when those of the group were last counted
	again    bool      // count them in the next round too
	stat     uint64    // memory in use when memory.stat was read
	above    *Sampler
	at       [motions]time.Time // when each was seen to have moved
}

// seen is what tells whether a group lives.
type seen struct {
	time        time.Time
	cpu, memory uint64
}

// motion is something that does not move in a group if it does not in the group above.
type motion int

const (
	unbounded motion = iota
	cpuStall
	memoryStall
	ioStall
	transfers // of block devices
	motions
)

const (
	// limitsEvery is how often limits are read, which change without the group doing anything.
	limitsEvery = 10 * time.Second
	// everything is how often every file is read whatever happens: what the kernel moves between the lists of
	// memory.stat, what writeback writes for a group that sleeps. Each group has its own turn, so that one sample does
	// not pay for all.
	everything = 5 * time.Minute
)

// when says in which samples a file is read.
type when uint16

const (
	// first files are read at every sample and tell whether the group lives: as long as neither CPU time nor memory
	// moved, no task of it ran and nothing else can have changed, so that an idle pod costs a few microseconds.
	first     when = 1 << iota
	always         // changes without the group running: pressure of waiting tasks
	ifRan          // changes when the group runs; what writeback writes for one that sleeps is seen with all the rest
	ifTouched      // changes with the memory in use, or when somebody is killed
	ifLimited      // changes when the group runs, if it has a quota
	ifMoved        // changes when the group runs, if the file before it has
	ifCharged      // changes with the memory in use: memory.stat costs the kernel as much as all other files together
	limits         // changes when somebody writes it
	peaks          // high-water marks: looked at with the limits, if memory has moved
	rare           // limits that nobody computes with
)

// every are all files but the first, which have been read by then.
const every = (rare<<1 - 1) &^ first

// chargeBatch is how many bytes the kernel charges to a group ahead of use, and keeps a CPU: a change that is less says
// nothing.
const chargeBatch = 64 << 12

// statFile is one open kernel file and what to do with its contents.
type statFile struct {
	fd int
	statSource
	moves motion
}

type statSource struct {
	controller, name string // controller "" is the v2 hierarchy
	when             when
	read             func(data []byte, u *Usage) error
}

// Alone makes v1's count of OOM kills that of the group alone, which without this is summed up over all groups below
// it: far too many for groups near the root.
func (s *Sampler) Alone() {
	s.oom.alone()
}

// Below says that the group is directly below another that is measured, just before it each time: what cannot have
// changed by what was seen there is not read.
func (s *Sampler) Below(above *Sampler) { s.above = above }

// Round is one measurement of many groups, for which what they have in common is read once. The zero value knows
// nothing.
type Round struct {
	// OOMKills are those of the whole machine ([MachineOOMKills]), which are counted before those of a group are: while
	// they stay the same, no group has had any.
	OOMKills uint64
	Known    bool
	// Brief leaves out what is neither CPU time nor memory.
	Brief bool
}

// MachineOOMKills are those since the machine came up, of groups and of the machine.
func MachineOOMKills() (uint64, error) {
	data, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, fmt.Errorf("count OOM kills: %w", err)
	}
	return field(data, "oom_kill"), nil
}

// unlimited stands where the kernel has no files of limits.
func unlimited() Usage {
	return Usage{
		CPU: CPU{QuotaUs: NoLimit}, Memory: Memory{Limit: NoLimit, SwapLimit: NoLimit}, Pids: Pids{Limit: NoLimit},
	}
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
func (s *Sampler) Refresh() { s.allAt = time.Time{} }

// Moved says whether the last sample differed from the one before in what tells of life: CPU time, memory or pressure.
// A group that did not move has no group below it that did, so that a tree need not be read further down.
func (s *Sampler) Moved() bool { return s.moved }

// buffers are those of samplers that sample, of which there are fewer than there are samplers.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 16<<10)
	return &b
}}

// Sample fills u. A group removed meanwhile gives ENODEV, as the kernel says it, and leaves in u what was read before.
func (s *Sampler) Sample(u *Usage) error { return s.SampleIn(u, Round{}) }

// SampleIn is Sample as part of a measurement of many groups.
func (s *Sampler) SampleIn(u *Usage, r Round) error {
	now := time.Now()
	*u = s.last
	u.Time = now
	s.psi = u.PSI.clone()
	buf := buffers.Get().(*[]byte)
	s.buf = *buf
	defer func() {
		*buf, s.buf = s.buf, nil
		buffers.Put(buf)
	}()
	if err := s.read(u, first, false); err != nil {
		return err
	}
	before := s.whole
	if r.Brief {
		before = s.last.seen()
	}
	ran, touched := u.CPU.UsageNs != before.cpu, u.Memory.Usage != before.memory
	// The machine's count moves a moment before that of a group, so that the round after one with a kill looks once
	// more.
	killed := r.Known && (r.OOMKills != s.kills || s.again)
	due := s.due(u, r, ran, touched, killed)
	if err := s.read(u, due, ran); err != nil {
		return err
	}
	if s.oom != nil && !r.Brief && (killed || due == every || touched && !r.Known) {
		n, err := s.oom.kills(s)
		if err != nil {
			return fmt.Errorf("measure group %s: %w", s.path, err)
		}
		u.Memory.OOMKills = n
	}
	u.PSI = s.psi
	u.Memory.derive()
	s.note(u, now)
	s.moved = ran || touched || u.PSI.stalls() != s.last.PSI.stalls()
	s.last = *u
	if !r.Brief {
		s.again, s.kills = r.OOMKills != s.kills, r.OOMKills
		s.whole = u.seen()
	}
	return nil
}

func (u *Usage) seen() seen { return seen{u.Time, u.CPU.UsageNs, u.Memory.Usage} }

// due says what is read now, and notes it.
func (s *Sampler) due(u *Usage, r Round, ran, touched, killed bool) when {
	var due when
	if max(u.Memory.Usage, s.stat)-min(u.Memory.Usage, s.stat) >= chargeBatch {
		due |= ifCharged
	}
	s.peak = s.peak || touched
	if u.Time.Sub(s.limitsAt) >= limitsEvery {
		due |= limits
	}
	if !r.Brief {
		due |= always
		if ran || touched {
			due |= ifRan | ifMoved
		}
		if touched || killed {
			due |= ifTouched
		}
		if ran && s.last.CPU.QuotaUs != NoLimit {
			due |= ifLimited
		}
		if due&limits != 0 && s.peak {
			due |= peaks
		}
	}
	if known := !s.allAt.IsZero(); !known || !r.Brief && u.Time.Sub(s.allAt) >= everything {
		due, s.allAt = every, u.Time
		if !known {
			s.allAt = u.Time.Add(-rand.N(everything))
		}
	}
	if due&ifCharged != 0 {
		s.stat = u.Memory.Usage
	}
	if due&limits != 0 {
		s.limitsAt = u.Time
	}
	if due&peaks != 0 {
		s.peak = false
	}
	return due
}

// note notes what has moved, for those below.
func (s *Sampler) note(u *Usage, now time.Time) {
	for q := cpuStall; q <= ioStall; q++ {
		if u.PSI.of(q).Some.TotalUs != s.last.PSI.of(q).Some.TotalUs {
			s.at[q] = now
		}
	}
	if u.IO != s.last.IO {
		s.at[transfers] = now
	}
}

// still says whether a file tells of something that cannot have moved since the last sample, by what is known of the
// group above. An average that has not come to rest moves by itself. Who waits for a CPU has run before and will run
// after, and is told of then.
func (s *Sampler) still(f *statFile, ran bool) bool {
	above := s.above != nil && s.above.whole.time.After(s.whole.time) && !s.above.at[f.moves].After(s.whole.time)
	if f.moves == unbounded || !above && (ran || f.moves != cpuStall) {
		return false
	}
	p := s.last.PSI.of(f.moves)
	return p.Some.Avg300 == 0 && p.Full.Avg300 == 0
}

// read reads the files whose turn it is.
func (s *Sampler) read(u *Usage, due when, ran bool) error {
	moved := false
	for i := range s.files {
		f := &s.files[i]
		if f.when&due == 0 || due != every && (f.when == ifMoved && !moved || s.still(f, ran)) {
			continue
		}
		data, err := s.pread(f.fd)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue // PSI switched off for this group (cgroup.pressure) or on the command line
		}
		before := u.IO
		if err == nil {
			err = f.read(data, u)
		}
		if err != nil {
			return fmt.Errorf("measure group %s: %w", s.path, err)
		}
		moved = u.IO != before
	}
	return nil
}

// pread reads a whole file with one system call. Asking again for an end of file would make the kernel render
// everything a second time, which for memory.stat is most of the cost of a sample; these files come in one piece if it
// fits.
func (s *Sampler) pread(fd int) ([]byte, error) {
	for {
		n, err := kernfs.Retry(func() (int, error) { return unix.Pread(fd, s.buf, 0) })
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
