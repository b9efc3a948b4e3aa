package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command runs the command that starts the agent. When the time is over, nothing of it is left: what it has just
// forked would otherwise be the agent's program later, when the files have been put back and nobody looks for it.
func (n *upgradedNode) command(ctx context.Context) error {
	// A daemon leaves its parent, its session and its process group; its forebear it keeps.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("run %q: become the parent of its orphans: %w", n.Restart, err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", n.Restart)
	// What it starts may have its outputs for good: files, not pipes of ours, which would break.
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // who interrupts this program does not mean the agent
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("run %q: %w", n.Restart, err)
	if ctx.Err() != nil {
		err = errors.Join(err, endOrphans())
	}
	return err
}

// endOrphans ends what the command has left. What its agent has started has cgroups of its own, and goes on.
func endOrphans() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*endPatience)
	defer cancel()
	for left := orphans(); len(left) > 0; left = orphans() { // the end of one leaves its children
		for _, pid := range left {
			if err := end(ctx, pid); err != nil {
				return err
			}
			if _, err := unix.Wait4(pid, nil, 0, nil); err != nil && !errors.Is(err, unix.ECHILD) {
				return fmt.Errorf("wait for process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// orphans are the children of this process that are in its cgroups.
func orphans() []int {
	self := os.Getpid()
	cgroup := procFile(self, "cgroup")
	var out []int
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range all {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		// Its name is in parentheses, and may have anything in it; its state and its parent follow.
		stat := string(procFile(pid, "stat"))
		words := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
		if len(words) > 1 && words[1] == strconv.Itoa(self) && bytes.Equal(procFile(pid, "cgroup"), cgroup) {
			out = append(out, pid)
		}
	}
	return out
}
