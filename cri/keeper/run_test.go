package keeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func TestRunTellsHowAContainerEnds(t *testing.T) {
	p := newPod(t)
	for _, tc := range []struct {
		script       string
		code, signal int
	}{
		{"exit 0", 0, 0},
		{"exit 7", 7, 0},
		{"kill -TERM $$; sleep 5", 143, 15},
		{"kill -KILL $$; sleep 5", 137, 9},
	} {
		c := p.container(p.spec("c", "/bin/sh", "-c", "echo 'sh -c \""+tc.script+"\"' >/tmp/x; /bin/sh -c '"+tc.script+"'; exit $?"))
		if tc.signal == 0 {
			c = p.container(p.spec("c", "/bin/sh", "-c", tc.script))
		}
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatalf("%s: %v", tc.script, err)
		}
		if e := p.exit(c.ID); e.Code != tc.code {
			t.Errorf("%s: ended with %+v", tc.script, e)
		}
	}
}

func TestSignalEndsAContainer(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	if err := p.Signal(t.Context(), id, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := p.exit(id)
	if e.Code != 137 || e.Signal != 9 || e.Pid != pid || e.StartedAt.After(e.FinishedAt) {
		t.Errorf("ended with %+v", e)
	}
}

// TestRunReturnsWhenTheProgramRuns looks at the process at once: until it executes the program it is libcontainer's,
// which reads as the helper and lets nobody look into it.
func TestRunReturnsWhenTheProgramRuns(t *testing.T) {
	p := newPod(t)
	for i := range 20 {
		_, pid := p.sh(fmt.Sprintf("sleep %d", 1000+i))
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || strings.Contains(exe, "helper") {
			t.Fatalf("start %d: process %d executes %q, %v", i, pid, exe, err)
		}
	}
}

// TestProgramHasTheUsualSlack: what a launcher's and an init's threads have for themselves, and the agent's, does not
// get into containers.
func TestProgramHasTheUsualSlack(t *testing.T) {
	before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // what it starts inherits its slack
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 300000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	p := newPod(t)
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	_, pid := p.sh("sleep 1000")
	for _, what := range []string{"own", "default"} {
		file := fmt.Sprintf("/proc/%d/timerslack_ns", pid)
		b, err := os.ReadFile(file)
		if got := strings.TrimSpace(string(b)); err != nil || got != "50000" {
			t.Errorf("the program's %s slack is %q, %v", what, got, err)
		}
		if err := os.WriteFile(file, []byte("0"), 0); err != nil { // sets the default
			t.Fatal(err)
		}
	}
}

func TestRunIsIdempotent(t *testing.T) {
	p := newPod(t)
	c := p.container(p.spec("c", "/bin/sh", "-c", "echo once; sleep 1000"))
	pids := make([]int, 6)
	var wg sync.WaitGroup
	for i := range pids {
		wg.Go(func() {
			var err error
			if pids[i], err = p.Run(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if pids[0] == 0 || len(slices.Compact(pids)) != 1 {
		t.Errorf("pids are %v", pids)
	}
	if err := p.Forget(c.ID); err == nil {
		t.Error("a running container was forgotten")
	}
	if err := p.Signal(t.Context(), c.ID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil && !errors.Is(err, keeper.ErrNotFound) {
		t.Fatal(err)
	}
	e := p.exit(c.ID)
	if pid, err := p.Run(t.Context(), c); err != nil || pid != e.Pid {
		t.Errorf("run of a container that has ended: %d, %v", pid, err)
	}
	for range 2 {
		if err := p.Forget(c.ID); err != nil {
			t.Error(err)
		}
	}
	if s, err := keeper.ReadStates(p.Dir()); err != nil || len(s) != 0 {
		t.Errorf("records are %+v, %v", s, err)
	}
}

// TestRunThatHangsCanBeEnded gives libcontainer a hook that takes its time.
func TestRunThatHangsCanBeEnded(t *testing.T) {
	p := newPod(t)
	spec := p.spec("c", "/bin/true")
	nap := strconv.Itoa(3_000_000 + os.Getpid())
	spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", nap}}}}
	c := p.container(spec)
	done := make(chan error)
	go func() {
		_, err := p.Run(t.Context(), c)
		done <- err
	}()
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 1 })
	if err := p.Signal(t.Context(), c.ID, unix.SIGTERM); !errors.Is(err, keeper.ErrNotFound) {
		t.Errorf("SIGTERM to a container that does not run: %v", err)
	}
	if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "signal 9") {
		t.Errorf("run ended with %v", err)
	}
	eventually(t, func() bool { return len(processes("sleep\x00"+nap)) == 0 })
	s, err := keeper.ReadStates(p.Dir())
	if err != nil || len(s) != 1 || s[0].Phase != "failed" {
		t.Errorf("records are %+v, %v", s, err)
	}
}

func TestRunThatFailsCanBeTriedAgain(t *testing.T) {
	p := newPod(t)
	spec := p.spec("c", "/bin/nothing")
	c := p.container(spec)
	for range 2 {
		_, err := p.Run(t.Context(), c)
		if err == nil || !strings.Contains(err.Error(), `exec: "/bin/nothing": stat /bin/nothing: no such file or directory`) {
			t.Fatalf("error is %v", err)
		}
	}
	s, err := keeper.ReadStates(p.Dir())
	if err != nil || len(s) != 1 || s[0].Phase != "failed" || !strings.Contains(s[0].Error, "no such file") {
		t.Errorf("records are %+v, %v", s, err)
	}
	if e, err := p.Exits(); err != nil || len(e) != 0 {
		t.Errorf("exits are %+v, %v", e, err)
	}
	spec.Process.Args = []string{"/bin/true"}
	b, _ := json.Marshal(spec)
	write(t, filepath.Join(c.Bundle, "config.json"), string(b), 0o600)
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(c.ID); e.Code != 0 {
		t.Errorf("ended with %+v", e)
	}
	if err := p.Forget("never-there"); err != nil {
		t.Error(err)
	}
}

// TestInstantExitIsToldOnce runs containers that are over before anybody looks.
func TestInstantExitIsToldOnce(t *testing.T) {
	p := newPod(t)
	told := map[string]int{}
	var mu sync.Mutex
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- p.Watch(ctx, func(e keeper.Exit) {
			mu.Lock()
			defer mu.Unlock()
			if e.Code == 17 && e.Pid > 0 && !e.StartedAt.After(e.FinishedAt) {
				told[e.ContainerID]++
			}
		})
	}()
	var ids []string
	for range 20 {
		id, pid := p.sh("exit 17")
		ids = append(ids, id)
		if pid <= 0 {
			t.Errorf("pid is %d", pid)
		}
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(told) == len(ids) })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v", err)
	}
	for id, n := range told {
		if n != 1 {
			t.Errorf("exit of %s was told %d times", id, n)
		}
	}
	exits, err := p.Exits()
	if err != nil || len(exits) != len(ids) {
		t.Errorf("%d exits on record, %v", len(exits), err)
	}
}

// TestRunWhoseAgentDies hangs up in the middle.
func TestRunWhoseAgentDies(t *testing.T) {
	p := newPod(t)
	for i := range 20 {
		c := p.container(p.spec("c", "/bin/sh", "-c", "exit 8"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		_, err := p.Run(ctx, c)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if e := p.exit(c.ID); e.Code != 8 {
			t.Errorf("ended with %+v", e)
		}
	}
}

// TestOutputHeldOpenDoesNotHideAnExit leaves a process in the pod's PID
// namespace that has the container's stdout.
func TestOutputHeldOpenDoesNotHideAnExit(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.PID = true })
	spec := p.spec("c", "/bin/sh", "-c", "echo first; (yes line &) ; exit 5")
	spec.Linux.Namespaces[1].Path = p.NSPath("pid")
	c := p.container(spec)
	c.LogMaxSize, c.LogMaxFiles = 1<<20, 2
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(c.ID); e.Code != 5 {
		t.Errorf("ended with %+v", e)
	}
}

func TestOOMKillIsTold(t *testing.T) {
	p := newPod(t)
	spec := p.spec("c", "/bin/sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
	limit := int64(20 << 20)
	spec.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	c := p.container(spec)
	memory := "/sys/fs/cgroup/memory"
	c.MemoryCgroup = memory + spec.Linux.CgroupsPath
	if _, err := os.Stat(memory); err != nil {
		c.MemoryCgroup = "/sys/fs/cgroup" + spec.Linux.CgroupsPath
	}
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(c.ID); !e.OOMKilled || e.Code == 0 {
		t.Errorf("ended with %+v", e)
	}
	id, _ := p.sh("exit 1")
	if e := p.exit(id); e.OOMKilled {
		t.Errorf("ended with %+v", e)
	}
}

// TestOOMKillOfGoneGroup: systemd removes the group of a container that has ended before the keeper reads its counter.
// The pod's counts it.
func TestOOMKillOfGoneGroup(t *testing.T) {
	p := newPod(t)
	group := t.TempDir()
	events := func(kills int) {
		t.Helper()
		text := fmt.Sprintf("low 0\nhigh 0\nmax 7\noom %d\noom_kill %d\noom_group_kill 0\n", kills, kills)
		if err := os.WriteFile(filepath.Join(group, "memory.events"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		kills  int
		signal unix.Signal
		want   bool
	}{
		"killed": {3, unix.SIGKILL, true}, "by somebody": {2, unix.SIGKILL, false}, "itself": {3, unix.SIGTERM, false},
	} {
		events(2) // of a container before this one
		one := p.container(p.spec(strings.ReplaceAll(name, " ", "-"), "/bin/sh", "-c", "trap 'exit 1' TERM; echo up; sleep 1000 & wait"))
		one.MemoryCgroup = filepath.Join(group, "gone")
		pid, err := p.Run(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return len(p.log(one.ID)) > 0 }) // it has its trap
		events(c.kills)
		if err := unix.Kill(pid, c.signal); err != nil {
			t.Fatal(err)
		}
		if e := p.exit(one.ID); e.OOMKilled != c.want {
			t.Errorf("%s: ended with %+v", name, e)
		}
	}
}

func TestAKeeperCanKeepManyContainers(t *testing.T) {
	p := newPod(t)
	before := files(t, p.Pid())
	var wg sync.WaitGroup
	codes := map[string]int{}
	var cs []keeper.Container
	for i := range 12 {
		c := p.container(p.spec("c", "/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)))
		codes[c.ID] = i
		cs = append(cs, c)
	}
	for _, c := range cs {
		wg.Go(func() {
			if _, err := p.Run(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for id, code := range codes {
		if e := p.exit(id); e.Code != code {
			t.Errorf("%s ended with %+v", id, e)
		}
		if l := p.log(id); len(l) != 1 || l[0] != fmt.Sprintf("stdout F %d", code) {
			t.Errorf("%s has log %q", id, l)
		}
		if err := p.Forget(id); err != nil {
			t.Error(err)
		}
	}
	eventually(t, func() bool { return len(files(t, p.Pid())) <= len(before) })
	// Launchers have let go of their files before they are reaped.
	eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Pid(), p.Pid()))
		return err == nil && len(b) == 0
	})
}
