package oom

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// parser puts together what the kernel writes of one kill: the use of the group that ran out, whom it chose, and what
// that one had. The reports come one after the other, since the kernel holds a lock over each; of many in a short time
// it leaves all but the last line out.
type parser struct {
	boot         time.Time
	dump         dumping
	usage, limit int64 // of the report that is being read
	chosen       Kill
	whole        string // group whose processes all die with the chosen one, by memory.oom.group
}

func (p *parser) reset() { *p = parser{boot: p.boot, dump: newDumping()} }

func newParser(boot time.Time) parser { return parser{boot: boot, dump: newDumping()} }

// record reads one record, "level,number,microseconds,flags;text", with lines of other things below it. What a program
// writes to the log is told by its facility, which the kernel does not let it choose; what it is called is all that a
// container has of itself in here.
func (p *parser) record(data []byte) (Kill, bool) {
	head, text, ok := bytes.Cut(data, []byte(";"))
	if !ok {
		return Kill{}, false
	}
	fields := strings.SplitN(string(head), ",", 4)
	if len(fields) < 3 {
		return Kill{}, false
	}
	level, err1 := strconv.ParseUint(fields[0], 10, 32)
	stamp, err2 := strconv.ParseInt(fields[2], 10, 64)
	seq, err3 := strconv.ParseUint(fields[1], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || level > 7 || stamp < 0 { // 8 and more: not the kernel's
		return Kill{}, false
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	s := strings.TrimRight(string(line), " ")
	switch {
	case strings.Contains(s, " invoked oom-killer: "):
		p.reset()
		p.dump.begin(s)
	case strings.HasPrefix(s, "memory: usage "):
		c, _ := parseCounter(s)
		p.usage, p.limit = c.Usage, int64(c.Limit)
		p.dump.line(s)
	case strings.HasPrefix(s, "oom-kill:constraint="):
		p.chosen, p.whole = parseChosen(s), ""
	case strings.HasPrefix(s, "Tasks in /") && strings.HasSuffix(s, " are going to be killed due to memory.oom.group set"):
		whole := printed(strings.TrimSuffix(strings.TrimPrefix(s, "Tasks in "), " are going to be killed due to memory.oom.group set"))
		if p.chosen.Group == whole || strings.HasPrefix(p.chosen.Group, whole+"/") {
			p.whole = whole
		}
	case !strings.Contains(s, killedMark):
		p.dump.line(s)
	default:
		k, ok := p.killed(s, p.boot.Add(time.Duration(min(stamp, 1<<52))*time.Microsecond))
		k.Seq = seq
		return k, ok
	}
	return Kill{}, false
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

// parseChosen reads
// "oom-kill:constraint=C,nodemask=N,cpuset=S,mems_allowed=M,oom_memcg=/P,task_memcg=/P/Q,task=T,pid=1,uid=0", with
// "global_oom" in place of oom_memcg where the machine ran out. T is chosen by the victim, and a container that may
// make groups chooses the ends of the paths, so that each may have what separates the fields in it. What a container
// can choose is never before its own group's path, though: a split is right when it leaves no more for T than a name
// can have, and the victim's group in the one that ran out.
func parseChosen(s string) Kill {
	var k Kill
	rest, uid, ok := cutLast(s, ",uid=")
	_, err := strconv.ParseUint(uid, 10, 32)
	if !ok || err != nil {
		return k
	}
	rest, pid, _ := cutLast(rest, ",pid=")
	if k.Pid, err = strconv.Atoi(pid); err != nil || k.Pid <= 0 {
		return Kill{}
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
		return Kill{}
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

// What tells of a kill, and of the setting by which it is whoever asks for memory.
const (
	killedMark = "Killed process "
	allocating = "oom_kill_allocating_task"
)

// figures takes in "1kB, anon-rss:1kB, ... oom_score_adj:0".
func (k *Kill) figures(numbers string) {
	for f := range strings.FieldsSeq(numbers) {
		name, value, _ := strings.Cut(f, ":")
		switch name {
		case "anon-rss":
			k.Anon = kilobytes(value)
		case "file-rss":
			k.File = kilobytes(value)
		case "shmem-rss":
			k.Shmem = kilobytes(value)
		case "pgtables":
			k.PageTables = kilobytes(value)
		case "oom_score_adj":
			if n, err := strconv.Atoi(value); err == nil && n >= exempt && n <= -exempt {
				k.ScoreAdj = n
			}
		}
	}
}

// killed reads "Memory cgroup out of memory: Killed process 1 (T) total-vm:1kB, anon-rss:1kB, file-rss:1kB,
// shmem-rss:1kB, UID:0 ...", where before Linux 5.3 the first words are in a line of their own. What comes last in the
// line is the kernel's.
func (p *parser) killed(s string, at time.Time) (Kill, bool) {
	i := strings.Index(s, killedMark)
	switch {
	case i == 0, i > 0 && strings.HasPrefix(s, "Memory cgroup out of memory: "+killedMark), i > 0 && strings.HasPrefix(s, "Out of memory: "+killedMark),
		i > 0 && strings.HasPrefix(s, "Out of memory ("+allocating+"): "+killedMark):
	default:
		return Kill{}, false
	}
	who, numbers, ok := cutLast(s[i+len(killedMark):], ") total-vm:")
	pid, comm, ok2 := strings.Cut(who, " (")
	k := Kill{Time: at, Comm: printed(comm), Asked: strings.HasPrefix(s, "Out of memory ("+allocating)}
	var err error
	if k.Pid, err = strconv.Atoi(pid); err != nil || k.Pid <= 0 || !ok || !ok2 || len(k.Comm) > maxComm {
		return Kill{}, false
	}
	k.figures(numbers)
	// Of those that die with the one that was chosen the kernel says no group but that which dies.
	c := p.chosen
	if c.Group == "" || c.Pid != k.Pid && (p.whole == "" || at.Sub(c.Time) > time.Second) {
		return k, true
	}
	if c.Pid == k.Pid && p.whole != "" && !c.Time.IsZero() {
		return Kill{}, false // it is still in the group that dies, and the kernel tells of it once more
	}
	if k.Constraint, k.Group, k.LimitGroup = c.Constraint, c.Group, c.LimitGroup; k.LimitGroup != "" {
		k.Usage, k.Limit = p.usage, p.limit
	}
	if c.Pid == k.Pid {
		k.Dump = p.dump.of(k.LimitGroup)
	} else {
		k.Group, k.With = p.whole, c.Pid
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
