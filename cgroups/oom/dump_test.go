package oom

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// v1Report is what Linux 6.18 has written of a v1 group, without the lines of the stack.
const v1Report = `4,1,810610000,-;tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
6,2,810610591,-;memory: usage 30720kB, limit 30720kB, failcnt 51
6,3,810610594,-;memory+swap: usage 30720kB, limit 9007199254740988kB, failcnt 0
6,4,810610595,-;kmem: usage 428kB, limit 9007199254740988kB, failcnt 0
6,5,810610596,-;Memory cgroup stats for /cdump:
6,6,810610642,-;cache 5
6,7,810610643,-;rss 7
6,8,810610644,-;shmem 9
6,9,810610650,-;hierarchical_memory_limit 31457280
6,10,810610651,-;total_cache 4096
6,11,810610651,-;total_rss 31019008
6,12,810610651,-;total_shmem 0
6,13,810610653,-;total_swap 0
6,14,810610665,-;Tasks state (memory values in pages):
6,15,810610665,-;[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
6,16,810610667,-;[  25534]     0 25534      648      405        0      405         0    40960        0             0 sh
6,17,810610670,-;[  25536]     0 25536      730      425        0      425         0    49152        0             0 sleep
6,18,810610671,-;[  25537]  1000 25537      765      414       32      382         0    45056        0          -997 a [1] b
6,19,810610672,-;[  25538]     0 25538     8160     7885     7456      429         0   106496        0             0 tail
6,20,810610674,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/cdump,task_memcg=/cdump/c,task=tail,pid=25538,uid=0
3,21,810610684,-;Memory cgroup out of memory: Killed process 25538 (tail) total-vm:32640kB, anon-rss:29824kB, file-rss:1716kB, shmem-rss:0kB, UID:0 pgtables:104kB oom_score_adj:0
`

func one(t *testing.T, log string) Kill {
	t.Helper()
	got := parseLog(log)
	if len(got) != 1 {
		t.Fatalf("%d kills", len(got))
	}
	return got[0]
}

func TestDump(t *testing.T) {
	k := one(t, v1Report)
	d := k.Dump
	if d == nil || d.Partial || d.Invoker != "tail" || d.Group != "/cdump" || len(d.Counters) != 3 || d.Counters[0] != (Counter{"memory", 30 << 20, 30 << 20, 51}) || d.Counters[2].Limit != 0 {
		t.Fatalf("%+v", d)
	}
	if got, want := fmt.Sprint(d.ByType), "map[anon:31019008 file:4096 kernel:438272 shmem:0 swap:0]"; got != want {
		t.Errorf("by type %s, want %s", got, want)
	}
	page := int64(os.Getpagesize())
	if len(d.Tasks) != 4 || d.Tasks[0] != (Task{Pid: 25538, Comm: "tail", RSS: 7885 * page, Anon: 7456 * page, File: 429 * page, PageTables: 106496}) ||
		d.Tasks[3].Comm != "a [1] b" || d.Tasks[3].ScoreAdj != -997 || d.Tasks[3].UID != 1000 {
		t.Errorf("%+v", d.Tasks)
	}
	if got := k.Why(); !strings.Contains(got, "of the 4 processes that could go it had the most, 31Mi") {
		t.Error(got)
	}
}

// TestDumpOfV2 has v2's statistics, which newer kernels write line by line and older ones at once.
func TestDumpOfV2(t *testing.T) {
	k := one(t, groupReport)
	want := "map[anon:61865984 file:1052672 kernel:204800 sock:0]"
	if got := fmt.Sprint(k.Dump.ByType); got != want || len(k.Dump.Tasks) != 2 || k.Dump.Tasks[1].Comm != "a b" {
		t.Errorf("%s, %+v", got, k.Dump.Tasks)
	}
	joined := strings.ReplaceAll(groupReport, "\n6,104,5000004,-;file", `\x0afile`)
	joined = strings.ReplaceAll(joined, "\n6,104,5000004,-;kernel", `\x0akernel`)
	if k = one(t, strings.ReplaceAll(joined, "\n6,104,5000004,-;sock", `\x0asock`)); fmt.Sprint(k.Dump.ByType) != want {
		t.Errorf("at once: %v", k.Dump.ByType)
	}
}

// TestDumpOfTheNode has the machine run out, whose figures are in pages, by an older kernel.
func TestDumpOfTheNode(t *testing.T) {
	k := one(t, `4,1,1,-;x invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
4,2,2,-;Mem-Info:
4,3,3,-;active_anon:3 inactive_anon:4 isolated_anon:0\x0a active_file:5 inactive_file:6 isolated_file:0\x0a slab_reclaimable:7
4,4,4,-;active_anon:99 of node 0
6,5,5,-;Tasks state (memory values in pages):
6,6,6,-;[  pid  ]   uid  tgid total_vm      rss nr_ptes nr_pmds swapents oom_score_adj name
6,7,7,-;[    5]  0  5  648  405  3  2  1  0 z
6,8,8,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/kubepods/x,task=z,pid=5,uid=0
3,9,9,-;Out of memory (oom_kill_allocating_task): Killed process 5 (z) total-vm:4kB, anon-rss:4kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0
`)
	page := int64(os.Getpagesize())
	d := k.Dump
	if !k.Asked || d == nil || d.ByType["anon"] != 7*page || d.ByType["file"] != 11*page || d.ByType["slab_reclaimable"] != 7*page || d.Tasks[0].PageTables != 5*page || d.Tasks[0].Swap != page {
		t.Errorf("%+v, %+v", k, d)
	}
	if got := k.Why(); !strings.Contains(got, "it asked for memory") {
		t.Error(got)
	}
}

// TestHugeTable keeps those that the kernel may choose, whatever else there is.
func TestHugeTable(t *testing.T) {
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&many, "6,1,1,-;[ %6d]     0  1   10  %d   0   0   0    4096   0   0 filler\n", 100000+i, i%7)
	}
	k := one(t, strings.Replace(v1Report, "6,16,", many.String()+"6,16,", 1))
	if len(k.Dump.Tasks) != maxTasks || k.Dump.Others != 5004-maxTasks || k.Dump.Tasks[0].Pid != 25538 {
		t.Errorf("%d tasks, %d others, first %+v", len(k.Dump.Tasks), k.Dump.Others, k.Dump.Tasks[0])
	}
}

// TestDumpOfAnother has what is not the dump of the kill, or not all of it.
func TestDumpOfAnother(t *testing.T) {
	k := one(t, strings.Replace(v1Report, "stats for /cdump:", "stats for /other:", 1))
	if k.Dump != nil {
		t.Errorf("another group's: %+v", k.Dump)
	}
	_, half, _ := strings.Cut(v1Report, "6,16,")
	if k = one(t, "6,16,"+half); k.Dump != nil || k.Why() != "" {
		t.Errorf("a table without a head: %+v", k.Dump)
	}
	_, half, _ = strings.Cut(v1Report, "6,14,")
	if k = one(t, "6,14,"+half); k.Dump == nil || !k.Dump.Partial || len(k.Dump.Tasks) != 4 {
		t.Errorf("the end of one: %+v", k.Dump)
	}
	// The next one has nothing of the one before.
	all := parseLog(v1Report + "4,1,810610000,-;y invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n" +
		v1Report[strings.Index(v1Report, "6,20,"):])
	if len(all) != 2 || all[0].Dump == nil || all[1].Dump != nil {
		t.Errorf("%+v", all)
	}
}

func FuzzLog(f *testing.F) {
	f.Add(groupReport)
	f.Add(v1Report)
	f.Add("6,1,1,-;oom-kill:constraint=C,oom_memcg=/a,task_memcg=/a/b\\x0a,task=\\x5c,pid=1,uid=0\n6,1,1,-;Killed process 1 (a) total-vm:1kB\n")
	f.Add(strings.ReplaceAll(v1Report, "tail", `\x0a[ 1] 0`) + groupReport[200:] + v1Report[:900] + groupReport)
	f.Fuzz(func(t *testing.T, log string) {
		for _, k := range parseLog(log) {
			if k.Pid <= 0 || len(k.Comm) > maxComm || k.Anon < 0 || k.Usage < 0 || k.LimitGroup != "" && k.LimitGroup != "/" && k.Group != k.LimitGroup && !strings.HasPrefix(k.Group, k.LimitGroup+"/") {
				t.Errorf("%+v", k)
			}
			_, _ = k.Describe("x"), k.Why()
			if k.Dump == nil {
				continue
			}
			if d := k.Dump; len(d.Tasks) > maxTasks || len(d.Counters) > 4 || len(d.ByType) > len(types()) || len(d.Invoker) > maxComm || d.Group != "" && d.Group != k.LimitGroup {
				t.Errorf("%+v", d)
			}
			for _, task := range k.Dump.Tasks {
				if task.Pid <= 0 || len(task.Comm) > maxComm || task.RSS < 0 || task.PageTables < 0 || task.Swap < 0 || task.ScoreAdj < -1000 || task.ScoreAdj > 1000 {
					t.Errorf("%+v", task)
				}
			}
		}
	})
}
