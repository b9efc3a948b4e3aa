package keeper_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// steps are the calls of the kernel by which an ordinary container is made, and how often each is looked at.
var steps = []struct {
	call  string
	times int
}{
	{"sched_setaffinity", 1},
	{"setsid", 1},
	{"setns", 2},
	{"clone3", 1}, // and the next, on v2
	{"unshare", 1},
	{"keyctl", 3},
	{"mount", 3},
	{"open_tree", 2},
	{"openat2", 6},
	{"fsopen", 3},
	{"fsconfig", 5},
	{"fsmount", 3},
	{"mknodat", 6},
	{"symlinkat", 5},
	{"mkdirat", 2},
	{"move_mount", 5},
	{"pivot_root", 1},
	{"umount2", 1},
	{"fchdir", 2},
	{"sendto", 1},
	{"close_range", 1},
	{"setgroups", 1},
	{"setresuid", 1},
	{"capset", 1},
	{"execve", 1},
}

// TestPlainKilledAtEachStep kills the first process of a container, and every other that starts it, as it enters each
// of the calls. Nothing of it is left.
func TestPlainKilledAtEachStep(t *testing.T) {
	needRoot(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace: ", err)
	}
	p := newPod(t, func(c *keeper.Config) { c.NoSpare = true })
	before, guards := p.hostMounts(), map[uint32]bool{}
	ended := 0
	for _, s := range steps {
		for i := range s.times {
			if p.killedAt(t, strace, s.call, i+1, guards) {
				ended++
			}
		}
	}
	t.Logf("%d starts have come to nothing", ended)
	if after := p.hostMounts(); after != before {
		t.Errorf("the host had the mounts\n%s\nand has\n%s", before, after)
	}
	awaitNoGuards(t, guards)
	noUnits(t)
}

// killedAt says whether a container was not started, of which whoever is below the keeper is killed at a call.
func (p *pod) killedAt(t *testing.T, strace, call string, when int, guards map[uint32]bool) (failed bool) {
	t.Helper()
	c := p.container(p.spec("c", "/bin/sleep", "1000"))
	if c.Plain == nil {
		t.Skip("nothing is ordinary on this machine")
	}
	inject := fmt.Sprintf("--inject=%s:signal=SIGKILL:when=%d", call, when)
	cmd := exec.Command(strace, "-f", "-qq", "-e", "signal=none", "-e", "trace="+call, inject, "-p", fmt.Sprint(p.Pid()), "-o", "/dev/null")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitTracer(t, p.Pid())
	_, err := p.Run(t.Context(), c)
	if err == nil {
		_ = p.Signal(t.Context(), c.ID, unix.SIGKILL)
		p.exit(c.ID)
	}
	// Asked to end, strace waits for ever for a process of whose threads it was not told that they ended. When it is
	// killed, the kernel lets go what it traces.
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for line := range strings.Lines(said.String()) {
		// So it tells of a process that is killed between two of its questions.
		if !strings.Contains(line, "ptrace_syscall_info.op") {
			t.Errorf("strace says %s", line)
		}
	}
	waitEmpty(t, procsOf(c.ID))
	awaitNoChildren(t, p.Pid())
	if gone := p.Forget(c.ID); gone != nil {
		t.Errorf("%s %d: %v", call, when, gone)
	}
	addGuards(guards, c.ID)
	removeGroup(c.ID)
	return err != nil
}

func awaitTracer(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), "TracerPid:\t0\n") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the keeper is not traced")
		}
	}
}

func awaitNoChildren(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(childrenOf(pid)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the keeper has children: %v", childrenOf(pid))
		}
	}
}
