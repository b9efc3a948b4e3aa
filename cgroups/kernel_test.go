package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/cgroupstest"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

func TestCreateIsIdempotentAndInEveryHierarchy(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	path := group + "/a/b"
	for range 2 {
		cgroupstest.Create(t, h, path, nil)
	}
	for _, dir := range h.Dirs(path) {
		if !kernfs.Exists(dir) {
			t.Errorf("%s is missing", dir)
		}
	}
	kids, err := h.Children(group)
	if err != nil || len(kids) != 1 || kids[0] != "a" {
		t.Errorf("children = %v, %v", kids, err)
	}
}

func TestSettings(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	shares, quota, period := uint64(512), int64(25_000), uint64(50_000)
	memory, pids := int64(64<<20), int64(77)
	r := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
	cgroupstest.Create(t, h, group, r)
	if h.Mode() == Unified {
		cgroupstest.Expect(t, h, group, "cpu", "cpu.weight", "50")
		cgroupstest.Expect(t, h, group, "cpu", "cpu.max", "25000 50000")
		cgroupstest.Expect(t, h, group, "memory", "memory.max", "67108864")
	} else {
		cgroupstest.Expect(t, h, group, "cpu", "cpu.shares", "512")
		cgroupstest.Expect(t, h, group, "cpu", "cpu.cfs_quota_us", "25000")
		cgroupstest.Expect(t, h, group, "cpu", "cpu.cfs_period_us", "50000")
		cgroupstest.Expect(t, h, group, "memory", "memory.limit_in_bytes", "67108864")
	}
	cgroupstest.Expect(t, h, group, "pids", "pids.max", "77")

	unlimited, more := int64(-1), int64(128<<20)
	r = &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &unlimited},
		Memory: &specs.LinuxMemory{Limit: &more},
		Pids:   &specs.LinuxPids{Limit: &unlimited},
	}
	if err := h.Update(group, r); err != nil {
		t.Fatal(err)
	}
	if h.Mode() == Unified {
		cgroupstest.Expect(t, h, group, "cpu", "cpu.max", "max 100000")
		cgroupstest.Expect(t, h, group, "memory", "memory.max", "134217728")
	} else {
		cgroupstest.Expect(t, h, group, "cpu", "cpu.cfs_quota_us", "-1")
		cgroupstest.Expect(t, h, group, "memory", "memory.limit_in_bytes", "134217728")
	}
	cgroupstest.Expect(t, h, group, "pids", "pids.max", "max")

	if err := h.Update(group, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &unlimited}}); err != nil {
		t.Fatal(err)
	}
	u, err := h.Stat(group)
	if err != nil || u.Memory.Limit != NoLimit || u.Memory.Available != NoLimit {
		t.Errorf("limit after lifting it = %d, %v", u.Memory.Limit, err)
	}
}

func TestUpdateOfMissingGroupMakesNothing(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	shares := uint64(2)
	err := h.Update(group, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("update of a missing group: %v", err)
	}
	if h.Exists(group) {
		t.Error("update made the group")
	}
}

func TestProcessCanJoinAndIsFound(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	path := group + "/deep/er"
	cgroupstest.Create(t, h, path, nil)
	cmd := cgroupstest.Process(t, h, path, "sleep 1000")
	got, err := h.FromPid(cmd.Process.Pid)
	if err != nil || got != path {
		t.Errorf("group of process = %q, %v, want %q", got, err, path)
	}
	pids, err := h.Pids(group)
	if err != nil || !slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("pids = %v, %v, want %d among them", pids, err, cmd.Process.Pid)
	}
}

func TestRemoveKillsTheWholeTree(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	var cmds []*exec.Cmd
	for _, sub := range []string{"/a", "/a/b", "/c"} {
		cgroupstest.Create(t, h, group+sub, nil)
	}
	// On v2 processes live in leaves only.
	for _, sub := range []string{"/a/b", "/c"} {
		cmds = append(cmds, cgroupstest.Process(t, h, group+sub, "sleep 1000 & sleep 1000 & trap '' TERM INT; wait"))
	}
	go func() {
		for _, c := range cmds {
			_, _ = c.Process.Wait() // a zombie keeps no group busy, but must not stay either
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := h.Remove(ctx, group); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.Remove(ctx, group); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	if pids, err := h.Pids(group); err != nil || len(pids) != 0 {
		t.Errorf("left: %v, %v", pids, err)
	}
}

// A process attached in only one v1 hierarchy, as after a crash in the middle of attaching, is killed too.
func TestRemoveFindsHalfAttachedProcess(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	cgroupstest.Create(t, h, group, nil)
	files := h.ProcsFiles(group)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if err := os.WriteFile(files[len(files)/2], []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the process ended well, it should have been killed")
	}
}

func TestRemoveOfForkingProcesses(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	limit := int64(50) // keeps the bomb from hurting the machine
	cgroupstest.Create(t, h, group, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}})
	cgroupstest.Process(t, h, group, "set +e; f() { f & f & }; while :; do (f) 2>/dev/null; done")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := h.Remove(ctx, group); err != nil {
		t.Fatal(err)
	}
}

func TestRemoveGivesUpWithTheContext(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	cgroupstest.Create(t, h, group, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	v := victims{}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	v[os.Getpid()] = fd
	defer v.close()
	if err := v.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait for a living process = %v", err)
	}
}

func TestKillRefusesOwnGroupAndRoot(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	for _, path := range []string{"", "/", "..", "/a/../..", "/kubepods/../.."} {
		if err := h.Remove(t.Context(), path); !errors.Is(err, ErrOutside) {
			t.Errorf("remove %q = %v", path, err)
		}
		if err := h.Create(path, nil); !errors.Is(err, ErrOutside) {
			t.Errorf("create %q = %v", path, err)
		}
		if err := h.Kill(t.Context(), path); !errors.Is(err, ErrOutside) {
			t.Errorf("kill %q = %v", path, err)
		}
	}
	cgroupstest.Create(t, h, group, nil)
	files := h.ProcsFiles(group)
	old, err := groupsOf(0)
	if err != nil {
		t.Fatal(err)
	}
	tr := h.trees[0]
	back := tr.dir
	if tr.unified {
		back += old[""]
	} else {
		back += old[tr.controllers[0]]
	}
	if err := os.WriteFile(files[0], []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	err = h.Kill(t.Context(), group)
	if werr := os.WriteFile(back+"/cgroup.procs", []byte("0"), 0); werr != nil {
		t.Fatal(werr)
	}
	if !errors.Is(err, ErrSelf) {
		t.Errorf("kill of our own group = %v", err)
	}
}

func TestStat(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	quota, period, limit := int64(5_000), uint64(100_000), int64(64<<20)
	cgroupstest.Create(t, h, group, &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period},
		Memory: &specs.LinuxMemory{Limit: &limit},
	})
	s, err := h.OpenSampler(group)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cgroupstest.Process(t, h, group, "while :; do :; done")
	var u Usage
	deadline := time.Now().Add(3 * time.Minute)
	for u.CPU.ThrottledNs == 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		if err := s.Sample(&u); err != nil {
			t.Fatal(err)
		}
	}
	if u.CPU.UsageNs == 0 || u.CPU.ThrottledPeriods == 0 || u.CPU.ThrottledNs == 0 {
		t.Errorf("cpu = %+v", u.CPU)
	}
	if u.Pids.Current != 1 || u.Memory.Usage == 0 || u.Memory.Limit != uint64(limit) {
		t.Errorf("usage = %+v", u)
	}
	if u.Memory.WorkingSet > u.Memory.Usage || u.Memory.Available != u.Memory.Limit-u.Memory.WorkingSet {
		t.Errorf("memory = %+v", u.Memory)
	}
	if kernfs.Exists("/proc/pressure") && h.unified != "" && (u.PSI == nil || u.PSI.CPU.Some.TotalUs == 0) {
		t.Errorf("a throttled group shows no pressure: %+v", u.PSI)
	}
	if _, err := h.Stat(group + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat of a missing group = %v", err)
	}
}

func TestOOMKillIsCounted(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	limit := int64(16 << 20)
	cgroupstest.Create(t, h, group, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}})
	cmd := cgroupstest.Process(t, h, group, "exec tail /dev/zero")
	_ = cmd.Wait()
	u, err := h.Stat(group)
	if err != nil || u.Memory.OOMKills == 0 {
		t.Errorf("memory after an OOM kill = %+v, %v", u.Memory, err)
	}
}

// The pod's count has the kills in its containers' groups, also of those that are gone: v1 itself forgets them.
func TestOOMKillsBelowAreCounted(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	limit := int64(16 << 20)
	cgroupstest.Create(t, h, group, nil)
	s, err := h.OpenSampler(group)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 2 {
		sub := group + "/c" + strconv.Itoa(i)
		cgroupstest.Create(t, h, sub, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}})
		_ = cgroupstest.Process(t, h, sub, "exec tail /dev/zero").Wait()
		one, err := h.Stat(group)
		if err != nil || one.Memory.OOMKills == 0 {
			t.Errorf("measured once after kill %d: %+v, %v", i, one.Memory, err)
		}
		for _, gone := range []bool{false, true} {
			if gone {
				if err := h.Remove(t.Context(), sub); err != nil {
					t.Fatal(err)
				}
			}
			if h.Mode() == Unified && gone {
				continue // v2 forgets them too
			}
			s.Refresh()
			var u Usage
			if err := s.Sample(&u); err != nil || u.Memory.OOMKills != uint64(i+1) {
				t.Errorf("kills after %d (group gone: %t) = %d, %v", i+1, gone, u.Memory.OOMKills, err)
			}
		}
	}
}

func TestSamplerOfAGroupThatGoes(t *testing.T) {
	h, group := cgroupstest.Group(t, Open)
	cgroupstest.Create(t, h, group, nil)
	s, err := h.OpenSampler(group)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var u Usage
	if err := s.Sample(&u); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Sample(&u); !errors.Is(err, unix.ENODEV) {
			t.Errorf("sample of a group that is gone: %v", err)
		}
		s.Refresh()
	}
	if _, err := h.OpenSampler(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open of a group that is gone: %v", err)
	}
}

func TestWarm(t *testing.T) {
	h, _ := cgroupstest.Group(t, Open)
	before, err := groupsOf(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := Warm(h); err != nil {
		t.Fatal(err)
	}
	after, err := groupsOf(0)
	if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("we moved: %v -> %v, %v", before, after, err)
	}
}

func BenchmarkCreateRemove(b *testing.B) {
	h, group := cgroupstest.Group(b, Open)
	cgroupstest.Create(b, h, group, nil)
	shares, quota, period := uint64(512), int64(25_000), uint64(100_000)
	memory := int64(64 << 20)
	r := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period},
		Memory: &specs.LinuxMemory{Limit: &memory},
	}
	var create, remove time.Duration
	for i := 0; b.Loop(); i++ {
		p := group + "/p" + strconv.Itoa(i)
		t0 := time.Now()
		if err := h.Create(p, r); err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if err := h.Remove(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		create += t1.Sub(t0)
		remove += time.Since(t1)
	}
	b.ReportMetric(float64(create.Microseconds())/float64(b.N), "create-µs")
	b.ReportMetric(float64(remove.Microseconds())/float64(b.N), "remove-µs")
}

// BenchmarkSample100 measures a hundred pods of one container each, pod and container group, in CPU time, since that is
// what the agent takes from its pods: as they mostly are, one in ten with a process that sleeps; with one in ten that
// runs; when all have run since the last sample; and the worst case, when what all have in memory has changed too. Each
// as if somebody asked all the time, and as if a quarter of a minute lay between, which makes more files due.
func BenchmarkSample100(b *testing.B) {
	for _, c := range []struct {
		name          string
		runs, charges int
	}{{"idle", 0, 0}, {"tenth-runs", 10, 10}, {"all-ran", 100, 10}, {"all-changed", 100, 100}} {
		b.Run(c.name, func(b *testing.B) { sample100(b, c.runs, c.charges, 0, false) })
		b.Run(c.name+"-15s", func(b *testing.B) { sample100(b, c.runs, c.charges, 15*time.Second, false) })
		b.Run(c.name+"-15s-brief", func(b *testing.B) { sample100(b, c.runs, c.charges, 15*time.Second, true) })
	}
}

func sample100(b *testing.B, runs, charges int, apart time.Duration, brief bool) {
	h, group := cgroupstest.Group(b, Open)
	var pods, containers []*Sampler
	for i := range 100 {
		pod := group + "/pod" + strconv.Itoa(i)
		for _, p := range []string{pod, pod + "/c"} {
			cgroupstest.Create(b, h, p, nil)
			s, err := h.OpenSampler(p)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			if p == pod {
				pods = append(pods, s)
			} else {
				s.Below(pods[i])
				containers = append(containers, s)
			}
		}
		if i%10 == 0 {
			cgroupstest.Process(b, h, pod+"/c", "sleep 1000")
		}
	}
	b.ReportAllocs()
	var u Usage
	t0 := cpuTime(b)
	for b.Loop() {
		kills, err := MachineOOMKills()
		if err != nil {
			b.Fatal(err)
		}
		r := Round{OOMKills: kills, Known: true, Brief: brief}
		for i, s := range pods {
			for _, one := range []*Sampler{s, containers[i]} { // as if it had been so
				if i < runs {
					one.last.CPU.UsageNs, one.whole.cpu = 1, 1
				}
				if i < charges {
					one.last.Memory.Usage, one.whole.memory, one.stat = 1, 1, 1<<30
				}
				one.allAt, one.limitsAt = one.allAt.Add(-apart), one.limitsAt.Add(-apart)
			}
			err := s.SampleIn(&u, r)
			if err == nil && s.Moved() {
				err = containers[i].SampleIn(&u, r)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64((cpuTime(b)-t0).Microseconds())/float64(b.N), "cpu-µs/op")
}

func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// The floor of the above: the same directories with nothing but mkdir and rmdir.
func BenchmarkFloor(b *testing.B) {
	h, group := cgroupstest.Group(b, Open)
	cgroupstest.Create(b, h, group, nil)
	var create, remove time.Duration
	for i := 0; b.Loop(); i++ {
		dirs := h.Dirs(group + "/p" + strconv.Itoa(i))
		t0 := time.Now()
		for _, d := range dirs {
			if err := unix.Mkdir(d, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		t1 := time.Now()
		for _, d := range dirs {
			if err := unix.Rmdir(d); err != nil {
				b.Fatal(err)
			}
		}
		create += t1.Sub(t0)
		remove += time.Since(t1)
	}
	b.ReportMetric(float64(create.Microseconds())/float64(b.N), "mkdir-µs")
	b.ReportMetric(float64(remove.Microseconds())/float64(b.N), "rmdir-µs")
}

// BenchmarkAttach shows what Warm is for: the cost of the first attach after a pause, of Warm itself, and of an attach
// after it.
func BenchmarkAttach(b *testing.B) {
	h, group := cgroupstest.Group(b, Open)
	for _, warm := range []bool{false, true} {
		b.Run(fmt.Sprintf("warm=%t", warm), func(b *testing.B) {
			for _, sub := range []string{"/a", "/b"} {
				cgroupstest.Create(b, h, group+sub, nil)
			}
			cmd := cgroupstest.Process(b, h, group+"/a", "sleep 1000")
			pid := strconv.Itoa(cmd.Process.Pid)
			var warming, first, rest []time.Duration
			for i := 0; b.Loop(); i++ {
				time.Sleep(100 * time.Millisecond)
				if warm {
					t := time.Now()
					if err := Warm(h); err != nil {
						b.Fatal(err)
					}
					warming = append(warming, time.Since(t))
				}
				for n, f := range h.ProcsFiles(group + []string{"/b", "/a"}[i%2]) {
					dir, file := f[:strings.LastIndexByte(f, '/')], "cgroup.procs"
					t := time.Now()
					if err := kernfs.Write(dir, file, pid); err != nil {
						b.Fatal(err)
					}
					if n == 0 {
						first = append(first, time.Since(t))
					} else {
						rest = append(rest, time.Since(t))
					}
				}
			}
			for name, d := range map[string][]time.Duration{"warm": warming, "first": first, "other": rest} {
				if len(d) > 0 {
					slices.Sort(d)
					b.ReportMetric(float64(d[len(d)/2].Nanoseconds())/1000, name+"-µs")
				}
			}
		})
	}
}

// BenchmarkSampleFiles tells what each file of a sample costs in CPU time.
func BenchmarkSampleFiles(b *testing.B) {
	h, group := cgroupstest.Group(b, Open)
	cgroupstest.Create(b, h, group, nil)
	cgroupstest.Process(b, h, group, "sleep 1000")
	s := Sampler{}
	sources := v1Sources()
	if h.Mode() == Unified {
		sources = v2Sources()
	}
	buf := make([]byte, 16<<10)
	for _, src := range append(sources, s.pressureSources()...) {
		fd, err := unix.Open(h.Dir(src.controller, group)+"/"+src.name, unix.O_RDONLY, 0)
		if err != nil {
			continue
		}
		b.Run(src.name, func(b *testing.B) {
			var u Usage
			for b.Loop() {
				n, err := unix.Pread(fd, buf, 0)
				if err != nil {
					b.Fatal(err)
				}
				if err := src.read(buf[:n], &u); err != nil {
					b.Fatal(err)
				}
			}
		})
		unix.Close(fd)
	}
}
