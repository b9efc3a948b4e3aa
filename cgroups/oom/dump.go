package oom

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Dump is what the kernel writes of a want of memory before it says whom it has killed, in bytes. It leaves it out
// where there was much to tell a moment before.
type Dump struct {
	Invoker  string    `json:"invoker,omitempty"` // the process that asked for what there was not
	Group    string    `json:"group,omitempty"`   // whose use is told by type; "": the machine's
	Counters []Counter `json:"counters,omitempty"`
	// ByType is the use of the group and those below it, by the names of v2's memory.stat, v1's translated.
	ByType map[string]int64 `json:"byType,omitempty"`
	// Tasks are those that could have been chosen, the likeliest first.
	Tasks  []Task `json:"tasks,omitempty"`
	Others int    `json:"otherTasks,omitempty"` // that are not among them, for there were too many
	// Partial says that the beginning was overwritten in the log before it was read.
	Partial bool `json:"partial,omitempty"`
}

// Counter is what a group has of a resource that is counted, when the dump was written.
type Counter struct {
	Name     string `json:"name"` // memory; v2: swap; v1: memory+swap, kmem
	Usage    int64  `json:"usageBytes"`
	Limit    Limit  `json:"limitBytes"`
	Failures int64  `json:"failures"` // how often there was no more to be had
}

// Task is a process that the kernel could have killed, as its table has it.
type Task struct {
	Pid        int    `json:"pid"`
	UID        int64  `json:"uid"`
	Comm       string `json:"comm"`
	RSS        int64  `json:"rssBytes"`
	Anon       int64  `json:"anonBytes,omitempty"` // these three by newer kernels
	File       int64  `json:"fileBytes,omitempty"`
	Shmem      int64  `json:"shmemBytes,omitempty"`
	PageTables int64  `json:"pageTablesBytes"`
	Swap       int64  `json:"swapBytes"`
	ScoreAdj   int    `json:"oomScoreAdj"`
}

// maxTasks bounds what is kept of the table: the kernel writes a line for each process of the group, which may be
// thousands.
const maxTasks = 40

// exempt is the score of those that are never chosen.
const exempt = -1000

// weight is by what the kernel chooses, in bytes: the most memory, to which the score adds its thousandths of what
// there is.
func (t *Task) weight(total int64) int64 {
	return t.RSS + t.PageTables + t.Swap + int64(t.ScoreAdj)*(total/1000)
}

// section is the part of a dump that its next lines belong to.
type section int

const (
	nowhere section = iota
	inStat
	inMachine
	inTasks
)

// dumping is a dump that is being read.
type dumping struct {
	Dump
	section section
	columns []string // of the table of tasks, the name left out
	page    int64
}

func newDumping() dumping { return dumping{Dump: Dump{Partial: true}, page: int64(os.Getpagesize())} }

// begin reads "stress invoked oom-killer: gfp_mask=...".
func (d *dumping) begin(s string) {
	*d = newDumping()
	invoker, _, _ := strings.Cut(s, " invoked oom-killer: ")
	if invoker = printed(invoker); len(invoker) <= maxComm {
		d.Invoker = invoker
	}
	d.Partial = false
}

// line takes a line in that may be part of the dump.
func (d *dumping) line(s string) {
	const stats = "Memory cgroup stats for "
	switch {
	case strings.HasPrefix(s, stats):
		group, first, _ := strings.Cut(strings.TrimPrefix(s, stats), ":")
		d.section, d.Group, d.ByType = inStat, printed(group), nil
		d.oldStat(first)
	case s == "Mem-Info:":
		d.section, d.ByType = inMachine, nil
	case strings.HasPrefix(s, "Tasks state "):
		d.section, d.Tasks, d.Others, d.columns = inTasks, nil, 0, nil
	case strings.HasPrefix(s, "["):
		d.task(s)
	case d.section == inStat:
		for line := range strings.SplitSeq(s, `\x0a`) { // older kernels have all of them in one record
			d.stat(line)
		}
	case d.section == inMachine:
		d.machine(s)
	}
	if c, ok := parseCounter(s); ok && len(d.Counters) < 4 {
		d.Counters = append(d.Counters, c)
	}
}

// parseCounter reads "memory: usage 65536kB, limit 65536kB, failcnt 21".
func parseCounter(s string) (Counter, bool) {
	f := strings.Fields(s)
	if len(f) != 7 || f[1] != "usage" || f[3] != "limit" || f[5] != "failcnt" {
		return Counter{}, false
	}
	name, ok := strings.CutSuffix(f[0], ":")
	if !ok || !slices.Contains([]string{"memory", "memory+swap", "kmem", "swap"}, name) {
		return Counter{}, false
	}
	failures, err := strconv.ParseInt(f[6], 10, 64)
	if err != nil || failures < 0 {
		return Counter{}, false
	}
	return Counter{Name: name, Usage: kilobytes(f[2]), Limit: Limit(kilobytes(f[4])), Failures: failures}, true
}

// types are the lines of memory.stat that say what memory was used for.
func types() []string {
	return []string{
		"anon", "file", "shmem", "kernel", "kernel_stack", "pagetables", "percpu", "sock", "slab", "slab_reclaimable", "slab_unreclaimable",
		"file_mapped", "file_dirty", "file_writeback", "swap", "swapcached", "zswap", "unevictable",
		"active_anon", "inactive_anon", "active_file", "inactive_file",
	}
}

// typeV1 is v2's name of a line of v1's memory.stat, of those that count the groups below too.
func typeV1(name string) string {
	switch name {
	case "total_rss":
		return "anon"
	case "total_cache":
		return "file"
	case "total_mapped_file":
		return "file_mapped"
	case "total_dirty":
		return "file_dirty"
	case "total_writeback":
		return "file_writeback"
	}
	name, total := strings.CutPrefix(name, "total_")
	if !total {
		return ""
	}
	return name
}

// stat reads "anon 61865984", or v1's "total_rss 61865984".
func (d *dumping) stat(s string) {
	name, value, ok := strings.Cut(s, " ")
	n, err := strconv.ParseInt(value, 10, 64)
	if !ok || err != nil || n < 0 || n > 1<<60 {
		return
	}
	switch {
	case strings.HasPrefix(name, "total_"):
		d.set(typeV1(name), n)
	case d.v1():
	default:
		d.set(name, n)
	}
}

// v1 says whether the group is one of v1, whose lines without total_ are its own alone.
func (d *dumping) v1() bool {
	return slices.ContainsFunc(d.Counters, func(c Counter) bool { return c.Name == "memory+swap" || c.Name == "kmem" })
}

// set keeps one figure; v1 tells one twice where a group has a name for its own.
func (d *dumping) set(name string, n int64) {
	if !slices.Contains(types(), name) {
		return
	}
	if d.ByType == nil {
		d.ByType = map[string]int64{}
	}
	d.ByType[name] = n
}

// oldStat reads what older kernels write in one line: " cache:0KB rss:60412KB ...", of each group below in a line of
// its own.
func (d *dumping) oldStat(s string) {
	for f := range strings.FieldsSeq(s) {
		name, value, _ := strings.Cut(f, ":")
		n, err := strconv.ParseInt(strings.TrimSuffix(value, "KB"), 10, 64)
		if err == nil && strings.HasSuffix(value, "KB") && n >= 0 && n < 1<<50 {
			d.set(typeV1("total_"+name), n<<10)
		}
	}
}

// machine reads "active_anon:1 inactive_anon:2 ...", in pages, several lines of which may be one record.
func (d *dumping) machine(s string) {
	if d.ByType != nil || !strings.HasPrefix(s, "active_anon:") {
		return
	}
	for f := range strings.FieldsSeq(strings.ReplaceAll(s, `\x0a`, " ")) {
		name, value, _ := strings.Cut(f, ":")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n >= 0 && n < 1<<40 {
			d.set(name, n*d.page)
		}
	}
	d.set("anon", d.ByType["active_anon"]+d.ByType["inactive_anon"])
	d.set("file", d.ByType["active_file"]+d.ByType["inactive_file"])
}

// task reads a line of the table of tasks, or its head, which says what the columns are: "[  pid  ]   uid  tgid
// total_vm rss ... name" and "[  25534]     0 25534      648      405 ... sh". What a process calls itself comes last.
func (d *dumping) task(s string) {
	pid, rest, ok := strings.Cut(strings.TrimPrefix(s, "["), "]")
	if !ok || d.section != inTasks {
		return
	}
	pid = strings.TrimSpace(pid)
	if pid == "pid" {
		d.columns = nil
		if names := strings.Fields(rest); len(names) > 1 && len(names) <= 16 && names[len(names)-1] == "name" {
			d.columns = names[:len(names)-1]
		}
		return
	}
	var t Task
	var err error
	if t.Pid, err = strconv.Atoi(pid); err != nil || t.Pid <= 0 || len(d.columns) == 0 {
		return
	}
	for _, column := range d.columns {
		var word string
		if word, rest, ok = strings.Cut(strings.TrimLeft(rest, " "), " "); !ok {
			return
		}
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || !t.set(column, n, d.page) {
			return
		}
	}
	if t.Comm = printed(rest); len(t.Comm) <= maxComm {
		d.keep(t)
	}
}

// set takes the figure of a column in; false where it can be none.
func (t *Task) set(column string, n, page int64) bool {
	if column == "oom_score_adj" {
		t.ScoreAdj = int(n)
		return n >= exempt && n <= -exempt
	}
	if n < 0 || n > 1<<40 {
		return false
	}
	switch column {
	case "uid":
		t.UID = n
	case "rss":
		t.RSS = n * page
	case "rss_anon":
		t.Anon = n * page
	case "rss_file":
		t.File = n * page
	case "rss_shmem":
		t.Shmem = n * page
	case "pgtables_bytes":
		t.PageTables = n
	case "nr_ptes", "nr_pmds": // of older kernels
		t.PageTables += n * page
	case "swapents":
		t.Swap = n * page
	}
	return true
}

// keep keeps a task, in place of the one least likely to be chosen when there are too many.
func (d *dumping) keep(t Task) {
	if len(d.Tasks) < maxTasks {
		d.Tasks = append(d.Tasks, t)
		return
	}
	d.Others++
	total := d.total()
	least := 0
	for i := range d.Tasks {
		if d.Tasks[i].weight(total) < d.Tasks[least].weight(total) {
			least = i
		}
	}
	if d.Tasks[least].weight(total) < t.weight(total) {
		d.Tasks[least] = t
	}
}

// total is the memory of which a score takes its thousandths.
func (d *dumping) total() int64 {
	for _, c := range d.Counters {
		if c.Name == "memory" {
			return int64(c.Limit)
		}
	}
	return 0
}

// of is the dump as it is told with a kill by the limit of a group; nil where it is another's, or there is none.
func (d *dumping) of(limitGroup string) *Dump {
	if d.Group != limitGroup && d.Group != "" || len(d.Tasks) == 0 && len(d.ByType) == 0 && len(d.Counters) == 0 {
		return nil
	}
	out := d.Dump
	out.Counters, out.Tasks = slices.Clone(d.Counters), slices.Clone(d.Tasks)
	for _, c := range d.Counters {
		if c.Name == "kmem" && d.ByType["kernel"] == 0 { // v1 has it in no line of its own
			out.ByType = maps.Clone(d.ByType)
			if out.ByType == nil {
				out.ByType = map[string]int64{}
			}
			out.ByType["kernel"] = c.Usage
		}
	}
	total := d.total()
	slices.SortStableFunc(out.Tasks, func(a, b Task) int {
		switch x, y := a.weight(total), b.weight(total); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return a.Pid - b.Pid
	})
	return &out
}
