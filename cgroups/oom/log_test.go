package oom

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/cgroupstest"
)

// parseLog gives a log to the parser, a record a line, as the kernel of Linux 6.18 has written it.
func parseLog(text string) []Kill {
	p := newParser(time.Unix(1000, 0))
	var out []Kill
	for line := range strings.Lines(text) {
		if k, ok := p.record([]byte(line)); ok {
			out = append(out, k)
		}
	}
	return out
}

const groupReport = `4,100,5000000,-;stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=999
4,101,5000001,-;CPU: 1 UID: 0 PID: 77 Comm: stress Not tainted 6.18.0 #1 PREEMPT
6,102,5000002,-;memory: usage 65536kB, limit 65536kB, failcnt 21
6,103,5000003,-;swap: usage 0kB, limit 0kB, failcnt 0
6,104,5000004,-;Memory cgroup stats for /kubepods/burstable/poda:
6,104,5000004,-;anon 61865984
6,104,5000004,-;file 1052672
6,104,5000004,-;kernel 204800
6,104,5000004,-;sock 0
6,104,5000004,-;workingset_refault_file 11
6,104,5000004,-;Tasks state (memory values in pages):
6,104,5000004,-;[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
6,105,5000005,-;[     76]     0    76      648      405        0      405         0    40960        0           999 a b
6,105,5000005,-;[     77]     0    77    16785    15103        0    15103         0   172032        0           999 stress
6,106,5000006,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/kubepods/burstable/poda,task_memcg=/kubepods/burstable/poda/c1,task=stress,pid=77,uid=0
3,107,5000007,-;Memory cgroup out of memory: Killed process 77 (stress) total-vm:67140kB, anon-rss:60412kB, file-rss:1024kB, shmem-rss:4kB, UID:0 pgtables:168kB oom_score_adj:999
`

func TestKernelLog(t *testing.T) {
	whole := strings.Replace(groupReport, "pid=77", "pid=77", 1) +
		"6,108,5000008,-;Tasks in /kubepods/burstable/poda/c1 are going to be killed due to memory.oom.group set\n" +
		// As Linux 6.1 does, of the one that was chosen and has not gone yet.
		"3,109,5000008,-;Memory cgroup out of memory: Killed process 77 (stress) total-vm:67140kB, anon-rss:60412kB, file-rss:1024kB, shmem-rss:4kB, UID:0 pgtables:168kB oom_score_adj:999\n" +
		"3,110,5000009,-;Memory cgroup out of memory: Killed process 78 (sh) total-vm:1kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:999\n"
	a := Kill{
		Time: time.Unix(1005, 7000), Pid: 77, Comm: "stress", Anon: 60412 << 10, File: 1 << 20, Shmem: 4 << 10, Constraint: "CONSTRAINT_MEMCG",
		Group: "/kubepods/burstable/poda/c1", LimitGroup: "/kubepods/burstable/poda", Usage: 64 << 20, Limit: 64 << 20,
		PageTables: 168 << 10, ScoreAdj: 999,
	}
	for _, c := range []struct {
		name, log string
		want      []Kill
	}{
		{"limit of an ancestor", groupReport, []Kill{a}},
		{"whole group", whole, []Kill{a, {
			Time: time.Unix(1005, 9000), Pid: 78, Comm: "sh", Anon: 8 << 10, Constraint: a.Constraint, Group: a.Group, LimitGroup: a.LimitGroup, Usage: a.Usage, Limit: a.Limit,
			PageTables: 1 << 10, ScoreAdj: 999, With: 77,
		}}},
		{
			"the node", "6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task_memcg=/kubepods/x,task=a b,pid=5,uid=1000\n" +
				"3,2,2,-;Out of memory: Killed process 5 (a b) total-vm:4kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0\n",
			[]Kill{{Time: time.Unix(1000, 2000), Pid: 5, Comm: "a b", Anon: 4 << 10, PageTables: 1 << 10, Constraint: "CONSTRAINT_NONE", Group: "/kubepods/x"}},
		},
		{
			"only the last line, of many kills in a short time", "3,2,2,-;Memory cgroup out of memory: Killed process 9 (x) total-vm:4kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n",
			[]Kill{{Time: time.Unix(1000, 2000), Pid: 9, Comm: "x", Anon: 4 << 10, PageTables: 1 << 10}},
		},
		{
			"a report whose victim went by itself, and another kill", strings.Replace(groupReport, "Killed process 77 (stress)", "Killed process 90 (y)", 1),
			[]Kill{{Time: a.Time, Pid: 90, Comm: "y", Anon: a.Anon, File: a.File, Shmem: a.Shmem, PageTables: a.PageTables, ScoreAdj: 999}},
		},
		{
			"before Linux 5.3", "3,1,1,-;Memory cgroup out of memory: Kill process 7 (z) score 1 or sacrifice child\n3,2,2,-;Killed process 7 (z) total-vm:4kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB\n",
			[]Kill{{Time: time.Unix(1000, 2000), Pid: 7, Comm: "z", Anon: 4 << 10}},
		},
		{"written by a program", strings.ReplaceAll(strings.ReplaceAll(groupReport, "\n6,", "\n14,"), "\n3,", "\n11,"), nil},
		{"said by a name", "4,1,1,-;Killed process  invoked oom-killer: gfp_mask=0x0\n4,2,2,-;x: Out of memory: Killed process 1 (a) total-vm:1kB\n", nil},
		{"none", "", nil},
	} {
		got := parseLog(c.log)
		for i := range got {
			got[i].Dump, got[i].Seq = nil, 0
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

// What a container chooses, the names of its processes and of groups it makes in its own, does not make a kill
// another's.
func TestKernelLogIsNotForged(t *testing.T) {
	const own = "/kubepods/poda/c1"
	for _, c := range []struct{ in, group, comm string }{
		{own, own, ",pid=1,uid=0"},
		{own, own, ",task=/podb"},
		{own, own, "x\n3,1,1,-;Out"},
		{own, own, "a) total-vm:9kB"},
		{own, own + "/x,task=y", "z,pid=3"},
		{own, own + "/x,task_memcg=/kubepods/podb/c2", "z"},
		{own + "/x,task_memcg=/kubepods/podb/c2", own + "/x,task_memcg=/kubepods/podb/c2", "z"},
		{"/kubepods", own + "/x,oom_memcg=/kubepods/podb/c2,task_memcg=/kubepods/podb/c2,task=a,pid=1", "z"},
		{"", own + "/x,oom_memcg=/kubepods/podb,task_memcg=/kubepods/podb/c2", "z"},
		{own, own + "/\x1b[31m\\x41é", "\x1b[2J"},
	} {
		escape := func(s string) string {
			var b strings.Builder
			for i := range len(s) {
				if ch := s[i]; ch < ' ' || ch >= 127 || ch == '\\' {
					fmt.Fprintf(&b, `\x%02x`, ch)
				} else {
					b.WriteByte(ch)
				}
			}
			return b.String()
		}
		where := ",oom_memcg=" + escape(c.in)
		if c.in == "" {
			where = ",global_oom"
		}
		got := parseLog("6,1,1,-;oom-kill:constraint=C,nodemask=0,2,cpuset=n,oom_memcg=,mems_allowed=0" + where + ",task_memcg=" + escape(c.group) + ",task=" + escape(c.comm) + ",pid=77,uid=0\n" +
			"3,2,2,-;Memory cgroup out of memory: Killed process 77 (" + escape(c.comm) + ") total-vm:1kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n")
		if len(got) != 1 || got[0].Pid != 77 || got[0].Anon != 4<<10 || !strings.HasPrefix(got[0].Group, own) || got[0].LimitGroup != c.in && !strings.HasPrefix(got[0].LimitGroup, own) {
			t.Errorf("%+v became %+v", c, got)
		}
	}
}

// The kernel kills a process by the limit of a group above its own, and its log says whose limit it was and what the
// process had.
func TestKernelLogOfThisKernel(t *testing.T) {
	h, group := cgroupstest.Group(t, cgroups.Open)
	l, err := OpenLog(LogPath, true)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EPERM) || errors.Is(err, fs.ErrPermission) {
		t.Skipf("the kernel's log cannot be read here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	limit := int64(24 << 20)
	cgroupstest.Create(t, h, group+"/pod", &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}})
	cgroupstest.Create(t, h, group+"/pod/c", nil)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `for f in `+strings.Join(h.ProcsFiles(group+"/pod/c"), " ")+`; do echo $$ > $f || exit 9; done; exec 2>/dev/null; cat /dev/zero | tail -c 300m; exit $?`)
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() == 9 {
		t.Fatalf("the process was not killed: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got Kill
	err = l.Follow(ctx, func(k Kill) {
		if strings.HasPrefix(k.Group, group+"/") || k.Group == "" && k.Comm == "tail" {
			got = k
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got.Group == "" {
		t.Skip("the kernel had so many kills to tell of that it did not say whose limit it was")
	}
	if got.Comm != "tail" || got.Group != group+"/pod/c" || got.LimitGroup != group+"/pod" || got.Limit != limit || got.Usage < limit/2 || got.Anon < limit/4 || got.Anon > limit {
		t.Errorf("the log tells of %+v", got)
	}
	// Who comes later reads it too, and waits for nothing.
	whole, err := OpenLog(LogPath, false)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	kills, err := whole.Kills(t.Context())
	found := false
	for _, k := range kills {
		found = found || k.Pid == got.Pid && k.Group == got.Group && k.Anon == got.Anon && k.Time.Sub(got.Time).Abs() < time.Second
	}
	if err != nil || !found {
		t.Errorf("%d kills are in the log, %v, and not this one: %+v", len(kills), err, got)
	}
	if _, err := OpenLog(os.DevNull+"/no", false); err == nil {
		t.Error("a log that is not there was opened")
	}
}
