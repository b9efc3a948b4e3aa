package keeper_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// initGroup makes a group in every hierarchy there is, and returns the files to join it by.
func initGroup(t *testing.T, name string) []string {
	t.Helper()
	files := cgroup(t, name)
	if len(files) == 0 {
		t.Skip("needs cgroups")
	}
	return files
}

func readPids(t *testing.T, file string) []int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for f := range strings.FieldsSeq(string(b)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, n)
	}
	return pids
}

// await waits for the end of a process.
func await(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60000)
	for err == unix.EINTR { // Go interrupts its own threads
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60000)
	}
	if n != 1 {
		t.Errorf("process %d does not end: %v", pid, err)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func sharing(t *testing.T, user bool) func(*keeper.Config) {
	t.Helper()
	return func(c *keeper.Config) {
		c.PID = true
		c.InitProcs = initGroup(t, fmt.Sprintf("init-%v", user))
		if !user {
			return
		}
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1 << 20, Size: 1 << 16}}
		ns, err := keeper.NewUserNS(c.Helper, ids, ids, false)
		if err != nil {
			t.Skipf("needs user namespaces: %v", err)
		}
		t.Cleanup(func() { ns.Close() })
		c.UserNS, c.RootUID = ns.Path("user"), 1<<20
	}
}

func TestProcessOneEndsWithItsKeeper(t *testing.T) {
	needRoot(t)
	for _, user := range []bool{false, true} {
		t.Run(fmt.Sprintf("user namespace %v", user), func(t *testing.T) {
			p := newPod(t, sharing(t, user))
			if p.Pid1() == 0 {
				t.Fatal("there is none")
			}
			for _, f := range p.config.InitProcs {
				if pids := readPids(t, f); len(pids) != 1 || pids[0] != p.Pid1() {
					t.Errorf("process 1 is %d, in %s are %v", p.Pid1(), f, pids)
				}
			}
			status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.Pid1()), "status"))
			if err != nil || !strings.Contains(string(status), "Seccomp:\t2\n") {
				t.Errorf("process 1 may make any system call: %s, %v", status, err)
			}
			if err := unix.Kill(p.Pid(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			await(t, p.Pid1())
			for _, f := range p.config.InitProcs {
				eventually(t, func() bool { return len(readPids(t, f)) == 0 })
			}
		})
	}
}

// TestStartGivenUp cancels the start of keepers at every moment of it. Nobody is left.
func TestStartGivenUp(t *testing.T) {
	needRoot(t)
	for _, user := range []bool{false, true} {
		t.Run(fmt.Sprintf("user namespace %v", user), func(t *testing.T) {
			c := keeper.Config{ID: fmt.Sprintf("given-up-%d", os.Getpid()), Helper: openHelper(t), IPC: true, UTS: true, Hostname: "x"}
			sharing(t, user)(&c)
			t.Cleanup(func() { removeCgroups(t) })
			for i := range 60 {
				c.Dir = t.TempDir()
				ctx, cancel := context.WithCancel(t.Context())
				seen := make(chan struct{})
				go func() {
					defer close(seen)
					cancelAt(c.Dir, i%6, cancel)
				}()
				k, err := keeper.Start(ctx, c)
				<-seen
				if err == nil {
					if err := k.Stop(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				// The kernel kills its children with it, and they need a moment to end.
				eventually(t, func() bool { return len(processes("berth-keeper\x00"+c.ID)) == 0 })
				for _, f := range c.InitProcs {
					eventually(t, func() bool { return len(readPids(t, f)) == 0 })
				}
			}
		})
	}
}

// cancelAt cancels when a starting keeper has come so far.
func cancelAt(dir string, step int, cancel context.CancelFunc) {
	defer cancel()
	see := func(path string) {
		for range 100000 {
			if _, err := os.Lstat(filepath.Join(dir, path)); err == nil {
				return
			}
		}
	}
	for _, path := range []string{"keeper.lock", "keeper.pid", "c", "exit", "keeper.sock"}[:min(step, 5)] {
		see(path)
	}
}

// TestLauncherEndsWithItsKeeper has a keeper die while a launcher has the order to start a container and does not get
// on. Later there would be nobody to look for what it makes.
func TestLauncherEndsWithItsKeeper(t *testing.T) {
	for range 20 {
		done := false
		// What one try has started goes before the next: all share the groups that are to be empty in the end.
		t.Run("try", func(t *testing.T) { done = launcherEndsWithItsKeeper(t) })
		if done {
			return
		}
	}
	t.Error("no launcher has waited for as long as it takes to stop one")
}

// launcherEndsWithItsKeeper returns false where the launcher that waits is let go before it has its order, as after a
// second.
func launcherEndsWithItsKeeper(t *testing.T) bool {
	p := newPod(t)
	var first []string
	for deadline := time.Now().Add(2 * time.Second); len(first) == 0; first = p.children("berth-helper\x00start") {
		if time.Now().After(deadline) {
			return false
		}
	}
	launcher, err := strconv.Atoi(strings.Split(first[0], "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(launcher, unix.SIGSTOP); err != nil {
		return false
	}
	c := p.container(p.spec("c", "/bin/sleep", "9001"))
	asked := make(chan error, 1)
	go func() {
		_, err := p.Run(t.Context(), c)
		asked <- err
	}()
	phase := ""
	eventually(t, func() bool {
		if len(asked) > 0 {
			return true
		}
		s, err := keeper.ReadStates(p.Dir())
		if err == nil && len(s) == 1 {
			phase = s[0].Phase
		}
		return phase == "launching"
	})
	if len(asked) > 0 || len(p.children("berth-helper\x00start")) != 1 {
		_ = unix.Kill(launcher, unix.SIGKILL) // stopped, and so not reaped
		return false
	}
	if err := unix.Kill(p.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-asked; err == nil {
		t.Error("the container runs")
	}
	await(t, launcher)
	return true
}
