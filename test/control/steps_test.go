//go:build linux && amd64

package control

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// steps runs a command of the control plane on a data directory under a debugger that kills it before the last of so
// many changes of what is below a directory: a file that is made, written, synced, renamed or removed. It returns how
// many there were, and how the command has ended.
func steps(t *testing.T, below string, last int, dir string, args ...string) (n int, out string, err error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A process is debugged by one thread. It ends with this one, whatever that does.
		runtime.LockOSThread()
		n, out, err = debugged(below, last, append(args, "--data-dir", dir))
	}()
	<-done
	return n, out, err
}

func debugged(below string, last int, args []string) (n int, said string, err error) {
	output, err := os.CreateTemp("", "steps-")
	if err != nil {
		return 0, "", err
	}
	defer func() {
		text, rerr := os.ReadFile(output.Name())
		said, err = string(text), errors.Join(err, rerr, output.Close(), os.Remove(output.Name()))
	}()
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = output, output
	// By its group its threads are waited for: this thread may have children of others, who wait for them themselves.
	cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, "", err
	}
	pid := cmd.Process.Pid
	defer func() { _ = cmd.Process.Release() }() // it is waited for here
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return 0, "", err
	}
	options := unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return 0, "", err
	}
	n, status, err = guide(pid, below, last)
	if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
		err = fmt.Errorf("it has ended with %#x", status)
	}
	return n, "", err
}

// guide lets the threads of a process go from call to call until it has ended.
func guide(pid int, below string, last int) (n int, status unix.WaitStatus, err error) {
	within := map[int]bool{} // threads in a call
	next, signal := pid, 0
	for {
		if next != 0 {
			if err := unix.PtraceSyscall(next, signal); err != nil && !errors.Is(err, unix.ESRCH) {
				return n, status, err
			}
		}
		thread, err := unix.Wait4(-pid, &status, unix.WALL|unix.WNOTHREAD, nil)
		if errors.Is(err, unix.EINTR) {
			next = 0
			continue
		}
		if err != nil {
			return n, status, err
		}
		next, signal = thread, 0
		switch {
		case status.Exited() || status.Signaled():
			if thread == pid {
				return n, status, nil
			}
			next = 0
		case status.StopSignal() == unix.SIGTRAP|0x80:
			within[thread] = !within[thread]
			if !within[thread] || !changes(thread, below) {
				continue
			}
			if n++; n == last {
				_ = unix.Kill(pid, unix.SIGKILL) // it is told of below
			}
		case status.StopSignal() != unix.SIGTRAP && status.StopSignal() != unix.SIGSTOP:
			signal = int(status.StopSignal())
		}
	}
}

// changes says whether the call that a thread is about to make changes something below a directory.
func changes(thread int, below string) bool {
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(thread, &regs) != nil {
		return false // it is gone
	}
	descriptor := func() bool {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, int32(regs.Rdi)))
		return err == nil && strings.HasPrefix(path, below)
	}
	named := func(addresses ...uint64) bool {
		for _, a := range addresses {
			buf := make([]byte, unix.PathMax)
			k, _ := unix.PtracePeekData(thread, uintptr(a), buf) // as far as there is memory
			text, _, _ := strings.Cut(string(buf[:k]), "\x00")
			if strings.HasPrefix(text, below) {
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
