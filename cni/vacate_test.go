package cni

import (
	"errors"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

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

// sleeper is a process in a network namespace.
func sleeper(t *testing.T, netns string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		started <- startIn(netns, cmd)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed, or waited for
	})
	return cmd
}

// ended says whether a process has, reaped or not.
func ended(t *testing.T, pid int) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	defer unix.Close(fd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	must(t, err)
	return n == 1
}

func TestVacate(t *testing.T) {
	needRoot(t)
	n := open(t, churnConfig(t.TempDir()))
	var pods []Pod
	for _, id := range []string{"a", "b", "c"} {
		ns, err := n.NewNamespace(id)
		must(t, err)
		p := Pod{ID: id, NetNS: ns}
		_, err = n.Setup(t.Context(), p)
		must(t, err)
		pods = append(pods, p)
	}
	inA, inB, inC, here := sleeper(t, pods[0].NetNS), sleeper(t, pods[1].NetNS), sleeper(t, pods[2].NetNS), sleeper(t, "/proc/self/ns/net")

	for _, id := range []string{"a", "a", "unknown"} {
		must(t, n.Vacate(t.Context(), id))
	}
	if !ended(t, inA.Process.Pid) || ended(t, inB.Process.Pid) {
		t.Error("the processes of a, and those alone, are to end")
	}

	// What Collect finds is emptied before anything of it is given back, and what is live is left alone.
	n = reopen(t, n.conf)
	must(t, n.Collect(t.Context(), []string{"c"}))
	if !ended(t, inB.Process.Pid) || ended(t, inC.Process.Pid) {
		t.Error("the processes of b, and those alone, are to end")
	}
	must(t, n.Teardown(t.Context(), pods[2]))
	must(t, n.RemoveNamespace("c"))

	// A pin that is the node's own namespace, whatever brought it about, must not cost the node its processes.
	_, err := n.AdoptNamespace("home", "/proc/self/ns/net")
	must(t, err)
	n = reopen(t, n.conf)
	if err := n.Collect(t.Context(), nil); err == nil {
		t.Error("the node's own namespace was vacated")
	}
	if ids, err := n.pins.list(); err != nil || !slices.Contains(ids, "home") {
		t.Errorf("what was not vacated is gone: %q, %v", ids, err)
	}
	if ended(t, here.Process.Pid) {
		t.Error("a process of the node was killed")
	}
	must(t, n.RemoveNamespace("home"))
}
