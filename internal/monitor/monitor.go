// Package monitor has the Go runtime's monitor thread sleep longer. As long as a goroutine runs, and for a moment
// after, it sleeps for 20 microseconds and looks around. With the kernel's usual slack that is some 14,000 times a
// second: of an agent that does something for a moment many times a second, a fifth of its CPU time. All that it does
// for such an agent is to let others run where a goroutine stays in a system call.
//
// A thread and a process are born with the slack of the thread that makes them, and the monitor makes threads, too.
// Threads of Go that are late by it do no harm; programs must not have it, above all not those of containers.
package monitor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// slack is how much later than asked for the kernel may wake the monitor up. It is as much as a goroutine may be kept
// waiting longer by another one's system call.
const slack = 1_000_000 // nanoseconds

// Relax gives the monitor of this process its slack. It is called early: the monitor is known by being the first thread
// after the process's own, which is told by their IDs until these begin anew.
func Relax() error {
	most, err := number("/proc/sys/kernel/pid_max")
	if err != nil {
		return fmt.Errorf("relax monitor thread: %w", err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("relax monitor thread: %w", err)
	}
	var ids []int
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	tid, ok := first(os.Getpid(), most, ids)
	if !ok {
		return errors.New("relax monitor thread: there is none")
	}
	if err := os.WriteFile(slackOf(tid), strconv.AppendInt(nil, slack, 10), 0); err != nil {
		return fmt.Errorf("relax monitor thread: %w", err)
	}
	return nil
}

// first is the thread that was made first after the process's own: the kernel gives IDs in their order, and begins anew
// after the highest.
func first(own, most int, ids []int) (id int, ok bool) {
	for _, t := range ids {
		if t != own && (!ok || after(own, t, most) < after(own, id, most)) {
			id, ok = t, true
		}
	}
	return id, ok
}

func after(own, id, most int) int { return (id - own + most) % most }

// Fork calls start, which starts a program, on a thread with the slack that this process was started with: its first
// thread has it, which the monitor has not made.
func Fork(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Where that cannot be read, the monitor's could not be changed.
	if n, err := number(slackOf(os.Getpid())); err == nil {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(n), 0, 0, 0)
	}
	return start()
}

func slackOf(tid int) string { return "/proc/" + strconv.Itoa(tid) + "/timerslack_ns" }

func number(file string) (int, error) {
	var b [32]byte
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: file, Err: err}
	}
	n, err := unix.Read(fd, b[:])
	_ = unix.Close(fd)
	if err != nil {
		return 0, &os.PathError{Op: "read", Path: file, Err: err}
	}
	return strconv.Atoi(strings.TrimSpace(string(b[:n])))
}
