// Package netnstest starts processes in network namespaces, for tests.
package netnstest

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Process is a process that is in a network namespace, and in nothing else of a pod.
type Process struct{ pidfd int }

// Start starts a process in the network namespace, which stays until it is killed, at the end of the test at the
// latest.
func Start(t *testing.T, netns string) Process {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000") // its end is the test's to bring about
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- startIn(netns, cmd)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed, or waited for
		unix.Close(fd)
	})
	return Process{fd}
}

// startIn starts a command in a network namespace. The thread, which may be the first one of the process, comes back.
func startIn(netns string, cmd *exec.Cmd) error {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(home)
	ns, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := errors.Join(cmd.Start(), unix.Setns(home, unix.CLONE_NEWNET)); err != nil {
		return err
	}
	runtime.UnlockOSThread()
	return nil
}

// Ended says whether the process has, reaped or not.
func (p Process) Ended() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, 0)
	return n > 0 || err != nil
}
