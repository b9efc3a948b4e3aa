package cgroups

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Warm makes the attaches of the next moments cheap. Attaching takes the kernel's cgroup_threadgroup_rwsem for writing, and
// when nobody did so for a while that waits for an RCU grace period, 6 ms or more. The wait belongs to the semaphore, not to the
// group, so attaching the calling process to the group it is in already pays it for whoever comes next: whoever hears
// that a pod will start calls this beside the parsing.
func (h *Hierarchy) Warm() error {
	dir, err := h.warmDir()
	if err != nil {
		return err
	}
	return writeFile(dir, "cgroup.procs", "0")
}

func (h *Hierarchy) warmDir() (string, error) {
	groups, err := h.groupsOf(0)
	if err != nil {
		return "", err
	}
	for _, t := range h.trees {
		name := "" // the v2 hierarchy
		if !t.unified {
			name = t.controllers[0]
		}
		if p, ok := groups[name]; ok {
			return t.dir + strings.TrimSuffix(p, "/"), nil
		}
	}
	return "", fmt.Errorf("find our own group: %w", ErrNoHierarchy)
}

// FavorDynmods keeps attaches cheap, as long as what it returns is open or inherited: by a hierarchy without controllers that asks the
// kernel to favor changes of groups ("favordynmods", since Linux 6.0). The kernel then never leaves the state that Warm brings it into
// for a moment, at the price of one memory barrier in each fork and exit. The hierarchy is mounted nowhere and goes with
// the last process that has it open, however that ends; meanwhile /proc/PID/cgroup has a line for it. Only where there are v1
// hierarchies anyhow: on v2 a process is born in its group, and programs may take any other line for a sign of v1.
func (h *Hierarchy) FavorDynmods() (io.Closer, error) {
	if h.mode == Unified {
		return io.NopCloser(nil), nil
	}
	f, err := favorDynmods()
	if err != nil {
		return nil, fmt.Errorf("favor changes of cgroups: %w", err)
	}
	return f, nil
}

func favorDynmods() (*os.File, error) {
	fs, err := unix.Fsopen("cgroup", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	// All who ask for one of this name share it.
	err = errors.Join(unix.FsconfigSetFlag(fs, "none"), unix.FsconfigSetString(fs, "name", "berth"), unix.FsconfigSetFlag(fs, "favordynmods"))
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), "cgroup"), nil
}
