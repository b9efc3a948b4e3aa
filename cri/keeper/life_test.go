package keeper_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func TestOpenFindsTheKeeperAfterACrash(t *testing.T) {
	p := newPod(t)
	quick, _ := p.sh("exit 3")
	p.exit(quick)
	slow := p.interactive(false, false, "read x; exit 4")
	// The new agent has nothing but the directory.
	k, err := keeper.Open(t.Context(), "pod", p.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if k.Pid() != p.Pid() || k.NSPath("ipc") != p.NSPath("ipc") {
		t.Errorf("found keeper %d, want %d", k.Pid(), p.Pid())
	}
	p.Keeper = k
	say(t, p.attach(slow), "\n")
	if e := p.exit(slow); e.Code != 4 {
		t.Errorf("ended with %+v", e)
	}
	if e := p.exit(quick); e.Code != 3 {
		t.Errorf("ended with %+v", e)
	}
}

func TestStartFindsALiveKeeper(t *testing.T) {
	p := newPod(t)
	k, err := keeper.Start(t.Context(), p.config)
	if err != nil || k.Pid() != p.Pid() {
		t.Fatalf("second start: %v, %v", k, err)
	}
	// Many at once make one.
	c := p.config
	c.Dir = t.TempDir()
	pids := make([]int, 8)
	var wg sync.WaitGroup
	for i := range pids {
		wg.Go(func() {
			if k, err := keeper.Start(t.Context(), c); err != nil {
				t.Error(err)
			} else {
				pids[i] = k.Pid()
			}
		})
	}
	wg.Wait()
	if len(slices.Compact(pids)) != 1 {
		t.Errorf("keepers are %v", pids)
	}
	k, err = keeper.Open(t.Context(), "pod", c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := k.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := keeper.Open(t.Context(), "pod", c.Dir); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("open after stop: %v", err)
	}
	// And it can be started again in the same directory.
	if k, err = keeper.Start(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := k.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStartSaysWhatWentWrong(t *testing.T) {
	needRoot(t)
	for want, change := range map[string]func(*keeper.Config){
		"join network namespace /nowhere": func(c *keeper.Config) { c.NetNS = "/nowhere" },
		"set sysctl kernel/nothing":       func(c *keeper.Config) { c.Sysctls = map[string]string{"kernel.nothing": "1"} },
		"join /nowhere/cgroup.procs":      func(c *keeper.Config) { c.CgroupProcs = []string{"/nowhere/cgroup.procs"} },
		"UTS namespace":                   func(c *keeper.Config) { c.UTS = false },
		"is not valid":                    func(c *keeper.Config) { c.Sysctls = map[string]string{"kernel/../../x": "1"} },
	} {
		c := keeper.Config{ID: "x", Dir: t.TempDir(), Helper: openHelper(t), UTS: true, Hostname: "x", PID: true}
		change(&c)
		if k, err := keeper.Start(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
			if k != nil {
				_ = k.Stop(t.Context())
			}
		}
	}
	eventually(t, func() bool { return len(processes("berth-keeper\x00x")) == 0 })
}

func TestStartInADirectoryLongerThanAnAddress(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	p := newPod(t, func(c *keeper.Config) { c.Dir = dir })
	id, _ := p.sh("exit 2")
	if e := p.exit(id); e.Code != 2 {
		t.Errorf("ended with %+v", e)
	}
}

func TestPodHasItsNamespaces(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) {
		c.Hostname = "some-pod"
		c.Sysctls = map[string]string{"kernel.msgmax": "9000", "kernel/shm_rmid_forced": "1"}
		c.OOMScoreAdj = 100
	})
	for _, ns := range []string{"ipc", "uts"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		if pod, err := os.Readlink(p.NSPath(ns)); err != nil || pod == own {
			t.Errorf("%s namespace is the host's: %v", ns, err)
		}
	}
	for _, ns := range []string{"net", "pid", "mnt"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		if pod, err := os.Readlink(p.NSPath(ns)); err != nil || pod != own {
			t.Errorf("%s namespace is not the host's: %v", ns, err)
		}
	}
	id, _ := p.sh("hostname; cat /proc/sys/kernel/msgmax /proc/sys/kernel/shm_rmid_forced")
	p.exit(id)
	if l := p.log(id); !slices.Equal(l, []string{"stdout F some-pod", "stdout F 9000", "stdout F 1"}) {
		t.Errorf("container sees %q", l)
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", p.Pid())); string(b) != "100\n" {
		t.Errorf("oom_score_adj is %q, %v", b, err)
	}
}

func TestContainersShareThePodsPIDNamespace(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.PID = true })
	run := func(args ...string) (string, int) {
		spec := p.spec("c", args...)
		spec.Linux.Namespaces[1].Path = p.NSPath("pid")
		c := p.container(spec)
		pid, err := p.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return c.ID, pid
	}
	first, _ := run("/bin/sleep", "5001")
	second, _ := run("/bin/sh", "-c", "ps; ls -l /proc/1/root /proc/1/fd; cat /proc/1/status; (sleep 0.1 &); exit 6")
	if e := p.exit(second); e.Code != 6 {
		t.Errorf("ended with %+v", e)
	}
	text := strings.Join(p.log(second), "\n")
	if !strings.Contains(text, "/pause") || !strings.Contains(text, "sleep 5001") {
		t.Errorf("second container sees %s", text)
	}
	pid1 := strings.Split(p.NSPath("pid"), "/")[2]
	root, err := os.ReadDir("/proc/" + pid1 + "/root")
	if err != nil || len(root) != 0 {
		t.Errorf("process 1 has a root with %d entries, %v", len(root), err)
	}
	n, _ := strconv.Atoi(pid1)
	if f := files(t, n); len(f) != 0 {
		t.Errorf("process 1 has files %v", f)
	}
	if m, err := os.ReadFile("/proc/" + pid1 + "/mountinfo"); err != nil || strings.Count(string(m), "\n") != 1 {
		t.Errorf("process 1 has mounts %s, %v", m, err)
	}
	status, _ := os.ReadFile("/proc/" + pid1 + "/status")
	if !strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534") || !strings.Contains(string(status), "CapPrm:\t0000000000000000") {
		t.Errorf("process 1 is %s", status)
	}
	// A container's end does not end its neighbours; their orphans are reaped.
	if e, err := p.Exits(); err != nil || len(e) != 1 {
		t.Errorf("exits are %+v, %v", e, err)
	}
	if err := p.Signal(t.Context(), first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.exit(first)
	eventually(t, func() bool {
		b, _ := os.ReadFile("/proc/" + pid1 + "/task/" + pid1 + "/children")
		return len(b) == 0
	})
}

func TestKillEndsWhatADeadKeeperLeft(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 6001")
	done := make(chan error)
	go func() { done <- p.Watch(t.Context(), func(keeper.Exit) {}) }()
	if err := unix.Kill(p.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, keeper.ErrGone) {
		t.Errorf("watch ended with %v", err)
	}
	eventually(t, func() bool {
		_, err := keeper.Open(t.Context(), "pod", p.Dir())
		return errors.Is(err, keeper.ErrGone)
	})
	if _, err := p.Run(t.Context(), p.container(p.spec("c", "/bin/true"))); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("run on a dead keeper: %v", err)
	}
	s, err := keeper.ReadStates(p.Dir())
	if err != nil || len(s) != 1 || s[0].ContainerID != id || s[0].Pid != pid || s[0].Phase != "running" {
		t.Errorf("records are %+v, %v", s, err)
	}
	for range 2 {
		if err := keeper.Kill(p.Dir()); err != nil {
			t.Error(err)
		}
	}
	eventually(t, func() bool { return len(processes("sleep\x006001")) == 0 })
	if err := p.Forget(id); err != nil {
		t.Error(err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestKillEndsALiveKeeperAndItsPod(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.PID = true })
	id, pid := p.sh("sleep 7001")
	if _, _, err := p.execIn(id, pid, nil, "sh", "-c", "setsid sleep 7002 >/dev/null 2>&1 & true"); err != nil {
		t.Fatal(err)
	}
	pid1 := "/proc/" + strings.Split(p.NSPath("pid"), "/")[2] + "/cmdline"
	if b, err := os.ReadFile(pid1); err != nil || !strings.HasPrefix(string(b), "/pause\x00") {
		t.Errorf("process 1 is %q, %v", b, err)
	}
	var fds []unix.PollFd
	for _, pid := range []int{p.Pid(), p.Pid1(), pid} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	if err := keeper.Kill(p.Dir()); err != nil {
		t.Fatal(err)
	}
	// Also the container's process 1, which the kernel lets end only after all that was in its PID namespace.
	if n, err := unix.Poll(fds, 0); n != len(fds) {
		t.Errorf("of the keeper, process 1 and the container's init %d have ended: %v, %v", n, fds, err)
	}
	eventually(t, func() bool { return len(processes("sleep\x00700")) == 0 })
}

// TestKillLeavesStrangersAlone gives it records whose pids are others' now.
func TestKillLeavesStrangersAlone(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	self := os.Getpid()
	write(t, filepath.Join(dir, "keeper.pid"), fmt.Sprintf("%d 1 %s", self, boot), 0o600)
	write(t, filepath.Join(dir, "c", "x"), fmt.Sprintf("1 running %d 1 1\n", self), 0o600)
	if err := keeper.Kill(dir); err != nil {
		t.Error(err)
	}
	if _, err := keeper.Open(t.Context(), "x", dir); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("open: %v", err)
	}
}

func TestStopEndsWhatIsLeft(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.PID = true })
	// In the host's PID namespace, with an orphan, so nothing ends by itself.
	spec := p.spec("c", "/bin/sh", "-c", "trap '' TERM HUP; (setsid sleep 8001 &); sleep 8002; true")
	spec.Linux.Namespaces = slices.Delete(spec.Linux.Namespaces, 1, 2)
	c := p.container(spec)
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(processes("sleep\x00800")) == 2 })
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := processes("sleep\x00800"); len(left) != 0 {
		t.Errorf("left running: %v", left)
	}
	exits, err := keeper.ReadExits(p.Dir())
	if err != nil || len(exits) != 1 || exits[0].Signal != 9 {
		t.Errorf("exits are %+v, %v", exits, err)
	}
}
