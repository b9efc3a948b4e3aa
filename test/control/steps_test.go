//go:build linux && amd64

package control

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// debugger kills a process before the last of so many changes of what it looks at: a file that is made, written,
// synced, renamed or removed.
type debugger struct {
	of   func(path string) bool
	last int
	// idle is while changes are not counted.
	idle atomic.Bool
	n    int // how many changes there were, when the process has ended
}

func below(dir string) func(string) bool {
	return func(path string) bool { return strings.HasPrefix(path, dir) }
}

// sent is what goes out to any other process, and is no file.
var sent = below("socket:")

// steps runs a command of the control plane on a data directory under a debugger that kills it before the last of so
// many changes. It returns how many there were, and how the command has ended.
func steps(t *testing.T, of func(path string) bool, last int, dir string, args ...string) (n int, out string, err error) {
	t.Helper()
	output, err := os.CreateTemp(t.TempDir(), "steps-")
	if err != nil {
		return 0, "", err
	}
	defer output.Close()
	d := &debugger{of: of, last: last}
	cmd := exec.Command(binary, append(args, "--data-dir", dir)...)
	cmd.Stdout, cmd.Stderr = output, output
	done := make(chan error)
	go func() { done <- d.run(cmd, nil) }()
	err = <-done
	text, rerr := os.ReadFile(output.Name())
	return d.n, string(text), errors.Join(err, rerr)
}

// start starts a process, and closes ended when it has ended. It is a [planes.Runner].
func (d *debugger) start(cmd *exec.Cmd, ended chan<- struct{}) error {
	started := make(chan error, 1)
	go func() {
		defer close(ended)
		if err := d.run(cmd, started); err != nil {
			select {
			case started <- err:
			default: // it was started, and has not ended well
			}
		}
		_ = cmd.Wait() // it has ended, but not all that it has written may have been read
	}()
	return <-started
}

// run runs a process until it has ended. A process is debugged by one thread, which ends with the goroutine of this
// function.
func (d *debugger) run(cmd *exec.Cmd, started chan<- error) error {
	runtime.LockOSThread()
	// By its group its threads are waited for: this thread may have children of others, who wait for them themselves.
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return err
	}
	options := unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return err
	}
	if started != nil {
		started <- nil
	}
	status, err := d.guide(pid)
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("it has ended with %#x", status)
	}
	return err
}

// guide lets the threads of a process go from call to call until it has ended.
func (d *debugger) guide(pid int) (status unix.WaitStatus, err error) {
	within := map[int]bool{} // threads in a call
	next, signal := pid, 0
	for {
		if next != 0 {
			if err := unix.PtraceSyscall(next, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return status, err
			}
		}
		thread, err := unix.Wait4(-pid, &status, unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			next = 0
			continue
		}
		if err != nil {
			return status, err
		}
		next, signal = thread, 0
		switch {
		case status.Exited() || status.Signaled():
			if thread == pid {
				return status, nil
			}
			next = 0
		case status.StopSignal() == unix.SIGTRAP|0x80:
			within[thread] = !within[thread]
			if !within[thread] || d.idle.Load() || !changes(thread, d.of) {
				continue
			}
			if d.n++; d.n == d.last {
				_ = unix.Kill(pid, unix.SIGKILL) // it is told of below
			}
		case status.StopSignal() != unix.SIGTRAP && status.StopSignal() != unix.SIGSTOP:
			signal = int(status.StopSignal())
		}
	}
}

// changes says whether the call that a thread is about to make changes something that is looked at.
func changes(thread int, of func(path string) bool) bool {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(thread, &regs) != nil {
		return false // it is gone
	}
	descriptor := func() bool {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, int32(regs.Rdi)))
		return err == nil && of(path)
	}
	named := func(addresses ...uint64) bool {
		for _, a := range addresses {
			buf := make([]byte, unix.PathMax)
			k, _ := unix.PtracePeekData(thread, uintptr(a), buf) // as far as there is memory
			text, _, _ := strings.Cut(string(buf[:k]), "\x00")
			if of(text) {
				return true
			}
		}
		return false
	}
	switch regs.Orig_rax {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FTRUNCATE:
		return descriptor()
	case unix.SYS_OPENAT:
		return regs.Rdx&unix.O_CREAT != 0 && named(regs.Rsi)
	case unix.SYS_MKDIRAT, unix.SYS_UNLINKAT:
		return named(regs.Rsi)
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return named(regs.Rsi, regs.R10)
	case unix.SYS_RENAME:
		return named(regs.Rdi, regs.Rsi)
	case unix.SYS_UNLINK, unix.SYS_RMDIR, unix.SYS_MKDIR:
		return named(regs.Rdi)
	}
	return false
}
