package oom

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Kill is a process that the kernel has killed for want of memory, as its log tells of it.
type Kill struct {
	Time time.Time `json:"time"`
	Pid  int       `json:"pid"` // as the machine counts, not the container
	Comm string    `json:"comm"`

	Anon  int64 `json:"anonBytes"` // what the process had, by type
	File  int64 `json:"fileBytes"`
	Shmem int64 `json:"shmemBytes"`

	Constraint string `json:"constraint,omitempty"` // CONSTRAINT_MEMCG: a group's limit; "": the log does not say
	Group      string `json:"group,omitempty"`      // of the process; "": the log does not say
	LimitGroup string `json:"limitGroup,omitempty"` // whose limit was reached: Group or above; "": the node's
	Usage      int64  `json:"usageBytes,omitempty"` // of LimitGroup before the kill; 0: the log does not say
	Limit      int64  `json:"limitBytes,omitempty"`

	PageTables int64  `json:"pageTablesBytes,omitempty"`
	ScoreAdj   int    `json:"oomScoreAdj,omitempty"`
	Asked      bool   `json:"asked,omitempty"` // it was killed for asking, not chosen: vm.oom_kill_allocating_task
	Seq        uint64 `json:"seq,omitempty"`   // of the record, which grows until the machine is started again
	With       int    `json:"with,omitempty"`  // the process chosen, with which this one had to die: memory.oom.group
	Dump       *Dump  `json:"dump,omitempty"`  // what the log has before it; nil: nothing
}

// Describe tells of a kill in words; limit names the group whose limit it was.
func (k *Kill) Describe(limit string) string {
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

// roundUp has no more than whole MiB of what has many.
func roundUp(n int64) int64 {
	if n < 10<<20 {
		return n
	}
	return (n + 1<<20 - 1) >> 20 << 20
}

func mib(n int64) string {
	if n < 10<<20 {
		return strconv.FormatInt(n>>10, 10) + "Ki"
	}
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64), ".0") + "Mi"
}

// Why says why it was this process.
func (k *Kill) Why() string {
	switch {
	case k.With != 0:
		return "it was in the group of process " + strconv.Itoa(k.With) + ", which dies as a whole (memory.oom.group)"
	case k.Asked:
		return "it asked for memory when there was none (vm.oom_kill_allocating_task)"
	case k.Dump == nil || len(k.Dump.Tasks) == 0:
		return ""
	}
	d := k.Dump
	tasks := len(d.Tasks) + d.Others
	of := fmt.Sprintf("of the %d processes that could go", tasks)
	if tasks == 1 {
		return "it was the only process that could go"
	}
	for i := range d.Tasks {
		t := &d.Tasks[i]
		if t.Pid != k.Pid {
			continue
		}
		has := mib(roundUp(t.RSS + t.PageTables + t.Swap))
		if i == 0 {
			return fmt.Sprintf("%s it had the most, %s, with an oom_score_adj of %d", of, has, t.ScoreAdj)
		}
		return fmt.Sprintf("%s it was number %d, with %s and an oom_score_adj of %d", of, i+1, has, t.ScoreAdj)
	}
	return ""
}
