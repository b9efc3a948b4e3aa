package keeper_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// The moments of an exec at which a test holds it.
const (
	entryIsBorn = 1 + iota
	settlerIsBorn
	programIsBorn
	programIsExecuted
)

// TestExecThatEndsEarlyLeavesNothing holds an exec at each moment of its start, and gives it up or kills its entry
// process there. The program has a file of root's with the setuid bit, before which the kernel forgets what was to be
// signalled when a parent ends.
func TestExecThatEndsEarlyLeavesNothing(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	suid := filepath.Join(p.rootfs, "bin/busybox-suid")
	b, err := os.ReadFile(filepath.Join(p.rootfs, "bin/busybox"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, suid, string(b), 0o755)
	if err := os.Chmod(suid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	nap := strconv.Itoa(3_000_000 + os.Getpid())
	pr := p.spec(id, "/bin/busybox-suid", "sleep", nap).Process
	pr.User.UID, pr.User.GID = 1000, 1000
	e := keeper.Exec{ContainerID: id, Pid: pid, Process: pr}
	start := func(ctx context.Context, h *held) {
		if proc, err := p.Exec(ctx, e); err == nil {
			<-h.acted
			_ = proc.Kill(unix.SIGKILL)
			_, _ = proc.Wait(t.Context())
			proc.Close()
		}
	}
	capture := func(ctx context.Context, _ *held) { _, _ = p.Capture(ctx, e, io.Discard, io.Discard) }
	for how, run := range map[string]func(context.Context, *held){"exec": start, "capture": capture} {
		for i, name := range []string{"entry process is born", "settler is born", "program is born", "program is executed"} {
			for what, act := range map[string]func(h *held, hangUp func()){
				"given up":                       func(_ *held, hangUp func()) { hangUp() },
				"killed":                         func(h *held, _ func()) { h.kill(entryIsBorn) },
				"settler is killed and given up": func(h *held, hangUp func()) { h.kill(settlerIsBorn); hangUp() },
			} {
				t.Run(how+"/"+name+"/"+what, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					h := hold(t, p.Pid(), entryIsBorn+i, func(h *held) { act(h, cancel) })
					run(ctx, h)
					<-h.over
					eventually(t, func() bool { return len(processes(nap)) == 0 && len(p.children("berth-exec")) == 0 })
				})
			}
		}
	}
	eventually(t, func() bool {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid()) + "/task/" + strconv.Itoa(p.Pid()) + "/children")
		return err == nil && len(bytes.Fields(b)) == 1
	})
	if out, _, err := p.execIn(id, pid, nil, "echo", "x"); err != nil || out != "x\n" {
		t.Errorf("the next exec has %q, %v", out, err)
	}
}

// held are the processes of an exec, traced from their births.
type held struct {
	t       *testing.T
	pids    map[int]int // moments of their births
	when    int
	act     func(*held)
	acted   chan struct{} // closed when it was held
	reached bool
	over    chan struct{} // closed when nobody is traced any more
}

const (
	waitThread  = 0x20000000 // __WNOTHREAD
	ptraceSeize = 0x4206
	eventStop   = 128
)

// hold calls act, once, at a moment of the keeper's next exec, which goes on afterwards.
func hold(t *testing.T, keeper, when int, act func(*held)) *held {
	t.Helper()
	h := &held{t: t, when: when, act: act, acted: make(chan struct{}), over: make(chan struct{})}
	seized := make(chan unix.Errno)
	go func() {
		defer close(h.over)
		runtime.LockOSThread() // only this one may do what is to be done with who is traced
		defer runtime.UnlockOSThread()
		_, _, err := unix.RawSyscall6(unix.SYS_PTRACE, ptraceSeize, uintptr(keeper), 0,
			unix.PTRACE_O_TRACEFORK|unix.PTRACE_O_TRACEVFORK|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACEEXEC, 0, 0)
		seized <- err
		if err == 0 {
			h.trace(keeper)
			h.detach(keeper)
			if !h.reached {
				t.Error("it was never held")
				close(h.acted)
			}
		}
	}()
	if err := <-seized; err != 0 {
		t.Fatalf("trace keeper: %v", err)
	}
	return h
}

// trace returns when the processes of an exec have ended. The kernel may tell of a child before it tells of its birth.
func (h *held) trace(keeper int) {
	h.pids = map[int]int{keeper: 0}
	early, ended := map[int]bool{}, map[int]bool{keeper: true}
	lives := func(pid int) bool { return !ended[pid] }
	for len(h.pids) == 1 || slices.ContainsFunc(slices.Collect(maps.Keys(h.pids)), lives) {
		var st unix.WaitStatus
		pid, err := unix.Wait4(-1, &st, unix.WALL|waitThread, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			h.t.Errorf("wait for what is traced: %v", err)
			return
		}
		if !st.Stopped() {
			ended[pid] = true
			continue
		}
		sig := 0
		switch event := int(st) >> 16; event {
		case 0:
			sig = int(st.StopSignal())
		case unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK, unix.PTRACE_EVENT_CLONE:
			msg, err := unix.PtraceGetEventMsg(pid)
			if child := int(msg); err == nil {
				h.pids[child] = h.pids[pid] + 1
				if early[child] {
					h.reach(h.pids[child])
					_ = unix.PtraceCont(child, 0)
				}
			}
		case unix.PTRACE_EVENT_EXEC:
			h.reach(programIsExecuted)
		case eventStop:
			moment, known := h.pids[pid]
			if !known {
				early[pid] = true
				continue
			}
			h.reach(moment) // also one that is stopped goes on
		}
		_ = unix.PtraceCont(pid, sig)
	}
}

// detach lets the keeper go, which has to be stopped for that.
func (h *held) detach(keeper int) {
	var st unix.WaitStatus
	if err := unix.PtraceInterrupt(keeper); err != nil {
		h.t.Error(err)
	}
	for {
		if _, err := unix.Wait4(keeper, &st, unix.WALL, nil); err != nil && err != unix.EINTR {
			h.t.Errorf("wait for keeper: %v", err)
			return
		} else if err == nil {
			break
		}
	}
	if err := unix.PtraceDetach(keeper); err != nil {
		h.t.Errorf("detach from keeper: %v", err)
	}
}

func (h *held) reach(moment int) {
	if moment != h.when || h.reached {
		return
	}
	h.reached = true
	h.act(h)
	close(h.acted)
}

func (h *held) kill(moment int) {
	for pid, m := range h.pids {
		if m == moment {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	}
}
