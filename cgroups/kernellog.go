package cgroups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KernelLogPath is where the kernel's log is read as records.
const KernelLogPath = "/dev/kmsg"

// OOMKill is a process that the kernel has killed for want of memory, as its log tells of it.
type OOMKill struct {
	Time time.Time `json:"time"`
	Pid  int       `json:"pid"` // as the machine counts, not the container
	Comm string    `json:"comm"`

	Anon  int64 `json:"anonBytes"` // what the process had, by type
	File  int64 `json:"fileBytes"`
	Shmem int64 `json:"shmemBytes"`

	Constraint string `json:"constraint,omitempty"` // CONSTRAINT_MEMCG: a group's limit; "": the log does not say
	Group      string `json:"group,omitempty"`      // of the process; "": the log does not say
	LimitGroup string `json:"limitGroup,omitempty"` // whose limit was reached: Group, or one above it; "": the machine's memory was used up
	Usage      int64  `json:"usageBytes,omitempty"` // of LimitGroup before the kill; 0: the log does not say
	Limit      int64  `json:"limitBytes,omitempty"`
}

// Describe tells of a kill in words; limit names the group whose limit it was.
func (k *OOMKill) Describe(limit string) string {
	out := fmt.Sprintf("process %d (%s) was killed for want of memory, with %s anonymous, %s of files and %s shared", k.Pid, k.Comm, mib(k.Anon), mib(k.File), mib(k.Shmem))
	switch {
	case k.Constraint == "": // the log leaves that out where there is much to tell
	case k.LimitGroup == "":
		out += "; no limit was reached, the node ran out of memory"
	case k.Limit > 0:
		out += fmt.Sprintf("; %s used %s of its limit of %s", limit, mib(k.Usage), mib(k.Limit))
	default:
		out += "; it was the limit of " + limit
	}
	return out
}

func mib(n int64) string {
	if n < 10<<20 {
		return strconv.FormatInt(n>>10, 10) + "Ki"
	}
	return strconv.FormatFloat(float64(n)/(1<<20), 'f', -1, 64) + "Mi"
}

// KernelLog reads the kernel's log. It is the whole machine's: who reads it picks out what is theirs.
type KernelLog struct {
	f      *os.File
	parser oomParser
	buf    []byte
	lost   bool
}

// OpenKernelLog opens the log at its beginning, or at its end with what comes from now on. Reading it takes CAP_SYSLOG on most machines.
func OpenKernelLog(path string, fromNow bool) (*KernelLog, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	if fromNow {
		if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
			unix.Close(fd)
			return nil, &os.PathError{Op: "seek", Path: path, Err: err}
		}
	}
	// A descriptor that does not block is waited for by the runtime's poller.
	return &KernelLog{f: os.NewFile(uintptr(fd), path), parser: oomParser{boot: bootTime()}, buf: make([]byte, maxRecord)}, nil
}

// maxRecord is more than the kernel's longest record: CONSOLE_EXT_LOG_MAX is 8 KiB.
const maxRecord = 16 << 10

// bootTime is when the clock of the log's timestamps was 0. It stands while the machine sleeps, so that kills before that are told later
// than they were.
func bootTime() time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(ts.Nano()))
}

// Close ends a read that waits.
func (l *KernelLog) Close() error { return l.f.Close() }

// Lost says whether records were overwritten before they were read.
func (l *KernelLog) Lost() bool { return l.lost }

// Kills are those in the log up to now. Nothing is waited for.
func (l *KernelLog) Kills(ctx context.Context) ([]OOMKill, error) {
	var out []OOMKill
	for ctx.Err() == nil {
		if err := l.f.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
			return out, fmt.Errorf("read kernel log: %w", err)
		}
		// Past the deadline the runtime would not even ask, so the descriptor is asked directly.
		n, err := l.readNow()
		switch {
		case errors.Is(err, unix.EAGAIN) || err == nil && n == 0:
			return out, nil
		case errors.Is(err, unix.EPIPE): // the writer has come round: what was next is gone
			l.lost = true
			l.parser.reset()
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return out, fmt.Errorf("read kernel log: %w", err)
		}
		if k, ok := l.parser.record(l.buf[:n]); ok {
			out = append(out, k)
		}
	}
	return out, ctx.Err()
}

func (l *KernelLog) readNow() (n int, err error) {
	c, err := l.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := c.Control(func(fd uintptr) { n, err = unix.Read(int(fd), l.buf) })
	return n, errors.Join(cerr, err)
}

// Follow calls fn with each kill until ctx ends.
func (l *KernelLog) Follow(ctx context.Context, fn func(OOMKill)) error {
	if err := l.f.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.f.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		n, err := l.f.Read(l.buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.EPIPE):
			l.lost = true
			l.parser.reset()
			continue
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		}
		if k, ok := l.parser.record(l.buf[:n]); ok {
			fn(k)
		}
	}
}

// oomParser puts together what the kernel writes of one kill: the use of the group that ran out, whom it chose, and what that one had. The
// reports come one after the other, since the kernel holds a lock over each; of many in a short time it leaves all but the last line out.
type oomParser struct {
	boot         time.Time
	usage, limit int64 // of the report that is being read
	chosen       OOMKill
	whole        string // group whose processes all die with the chosen one, by memory.oom.group
}

func (p *oomParser) reset() { *p = oomParser{boot: p.boot} }

// record reads one record, "level,number,microseconds,flags;text", with lines of other things below it. What a program writes to the log
// is told by its facility, which the kernel does not let it choose; what it is called is all that a container has of itself in here.
func (p *oomParser) record(data []byte) (OOMKill, bool) {
	head, text, ok := bytes.Cut(data, []byte(";"))
	if !ok {
		return OOMKill{}, false
	}
	fields := strings.SplitN(string(head), ",", 4)
	if len(fields) < 3 {
		return OOMKill{}, false
	}
	level, err1 := strconv.ParseUint(fields[0], 10, 32)
	stamp, err2 := strconv.ParseInt(fields[2], 10, 64)
	if err1 != nil || err2 != nil || level > 7 || stamp < 0 { // 8 and more: another facility than the kernel
		return OOMKill{}, false
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	s := strings.TrimRight(string(line), " ")
	switch {
	case strings.Contains(s, " invoked oom-killer: "):
		p.reset()
	case strings.HasPrefix(s, "memory: usage "):
		p.usage, p.limit = parseUsage(s)
	case strings.HasPrefix(s, "oom-kill:constraint="):
		p.chosen, p.whole = parseChosen(s), ""
	case strings.HasPrefix(s, "Tasks in /") && strings.HasSuffix(s, " are going to be killed due to memory.oom.group set"):
		whole := printed(strings.TrimSuffix(strings.TrimPrefix(s, "Tasks in "), " are going to be killed due to memory.oom.group set"))
		if p.chosen.Group == whole || strings.HasPrefix(p.chosen.Group, whole+"/") {
			p.whole = whole
		}
	default:
		return p.killed(s, p.boot.Add(time.Duration(min(stamp, 1<<52))*time.Microsecond))
	}
	return OOMKill{}, false
}

// parseUsage reads "memory: usage 65536kB, limit 65536kB, failcnt 21".
func parseUsage(s string) (usage, limit int64) {
	f := strings.Fields(s)
	if len(f) != 7 || f[3] != "limit" || f[5] != "failcnt" {
		return 0, 0
	}
	return kilobytes(f[2]), kilobytes(f[4])
}

// kilobytes reads "65536kB" and "65536kB,"; 0 where it is no such number.
func kilobytes(s string) int64 {
	s, ok := strings.CutSuffix(strings.TrimSuffix(s, ","), "kB")
	n, err := strconv.ParseInt(s, 10, 64)
	if !ok || err != nil || n < 0 || n > 1<<50 {
		return 0
	}
	return n << 10
}

// maxComm is the length of a process's name in bytes.
const maxComm = 15

// parseChosen reads "oom-kill:constraint=C,nodemask=N,cpuset=S,mems_allowed=M,oom_memcg=/P,task_memcg=/P/Q,task=T,pid=1,uid=0", with
// "global_oom" in place of oom_memcg where the machine ran out. T is chosen by the victim, and a container that may make groups chooses the
// ends of the paths, so that each may have what separates the fields in it. What a container can choose is never before its own group's
// path, though: a split is right when it leaves no more for T than a name can have, and the victim's group in the one that ran out.
func parseChosen(s string) OOMKill {
	var k OOMKill
	rest, uid, ok := cutLast(s, ",uid=")
	_, err := strconv.ParseUint(uid, 10, 32)
	if !ok || err != nil {
		return k
	}
	rest, pid, _ := cutLast(rest, ",pid=")
	if k.Pid, err = strconv.Atoi(pid); err != nil || k.Pid <= 0 {
		return OOMKill{}
	}
	constraint, _, _ := strings.Cut(strings.TrimPrefix(rest, "oom-kill:constraint="), ",")
	const global, memcg, victim, name = ",global_oom,task_memcg=", ",oom_memcg=", ",task_memcg=", ",task="
	g, m := strings.Index(rest, global+"/"), strings.Index(rest, memcg+"/")
	switch {
	case g >= 0 && (m < 0 || g < m):
		k.Group, k.Comm = cutComm(rest[g+len(global):], name)
	case m >= 0:
		paths := rest[m+len(memcg):]
		for i := range len(paths) {
			if !strings.HasPrefix(paths[i:], victim) {
				continue
			}
			in := printed(paths[:i])
			group, comm := cutComm(paths[i+len(victim):], name)
			if group == in || in == "/" || strings.HasPrefix(group, in+"/") {
				k.LimitGroup, k.Group, k.Comm = in, group, comm
				break
			}
		}
	}
	if k.Group == "" {
		return OOMKill{}
	}
	k.Constraint = constraint
	return k
}

// cutComm cuts a path from the name after it, at the first place that leaves no more than a name can have.
func cutComm(s, sep string) (path, comm string) {
	for i := range len(s) {
		if strings.HasPrefix(s[i:], sep) {
			if comm := printed(s[i+len(sep):]); len(comm) <= maxComm {
				return printed(s[:i]), comm
			}
		}
	}
	return "", ""
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// killed reads "Memory cgroup out of memory: Killed process 1 (T) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:1kB, UID:0 ...", where
// before Linux 5.3 the first words are in a line of their own. What comes last in the line is the kernel's.
func (p *oomParser) killed(s string, at time.Time) (OOMKill, bool) {
	const mark = "Killed process "
	switch i := strings.Index(s, mark); {
	case i == 0, i > 0 && strings.HasPrefix(s, "Memory cgroup out of memory: "+mark), i > 0 && strings.HasPrefix(s, "Out of memory: "+mark),
		i > 0 && strings.HasPrefix(s, "Out of memory (oom_kill_allocating_task): "+mark):
		s = s[i+len(mark):]
	default:
		return OOMKill{}, false
	}
	who, numbers, ok := cutLast(s, ") total-vm:")
	pid, comm, ok2 := strings.Cut(who, " (")
	k := OOMKill{Time: at, Comm: printed(comm)}
	var err error
	if k.Pid, err = strconv.Atoi(pid); err != nil || k.Pid <= 0 || !ok || !ok2 || len(k.Comm) > maxComm {
		return OOMKill{}, false
	}
	for f := range strings.FieldsSeq(numbers) {
		name, value, _ := strings.Cut(f, ":")
		switch name {
		case "anon-rss":
			k.Anon = kilobytes(value)
		case "file-rss":
			k.File = kilobytes(value)
		case "shmem-rss":
			k.Shmem = kilobytes(value)
		}
	}
	// Of those that die with the one that was chosen the kernel says no group but that which dies.
	c := p.chosen
	if c.Group == "" || c.Pid != k.Pid && (p.whole == "" || at.Sub(c.Time) > time.Second) {
		return k, true
	}
	if k.Constraint, k.Group, k.LimitGroup = c.Constraint, c.Group, c.LimitGroup; k.LimitGroup != "" {
		k.Usage, k.Limit = p.usage, p.limit
	}
	if c.Pid != k.Pid {
		k.Group = p.whole
	}
	p.chosen.Time = at
	return k, true
}

// printed undoes what the kernel makes of bytes that are not printed: \x0a.
func printed(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] == 'x' {
			if n, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// LoadKills reads kills that [SaveKills] has written; without the file the error is fs.ErrNotExist.
func LoadKills(file string) ([]OOMKill, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read kills: %w", err)
	}
	var out struct {
		Version int       `json:"version"`
		Kills   []OOMKill `json:"kills"`
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("read kills of %s: %w", file, err)
	}
	if out.Version != killsVersion {
		return nil, fmt.Errorf("read kills of %s: it has version %d, this berth reads %d", file, out.Version, killsVersion)
	}
	return out.Kills, nil
}

const killsVersion = 1

// SaveKills writes a file of kills. Who reads it meanwhile has what was there before.
func SaveKills(file string, kills []OOMKill) error {
	data, err := json.Marshal(map[string]any{"version": killsVersion, "kills": kills})
	if err != nil {
		return fmt.Errorf("keep kills: %w", err)
	}
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		return fmt.Errorf("keep kills: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("keep kills: %w", err)
	}
	return nil
}
