package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func namespaceProbes() []probe {
	var out []probe
	for _, n := range []struct {
		name, cost string
		flag       uintptr
		required   bool
	}{
		{"net", "A pod cannot have a network of its own; only hostNetwork pods run.", unix.CLONE_NEWNET, true},
		{"ipc", "Pods would share System V IPC and POSIX queues with the node.", unix.CLONE_NEWIPC, true},
		{"uts", "A pod cannot have a host name of its own.", unix.CLONE_NEWUTS, true},
		{"pid", "Containers would see and could signal every process of the node.", unix.CLONE_NEWPID, true},
		{"mnt", "A container cannot have a root file system of its own.", unix.CLONE_NEWNS, true},
		{"cgroup", "Containers see the node's cgroup paths.", unix.CLONE_NEWCGROUP, false},
		{"user", "Pods with hostUsers: false are refused.", unix.CLONE_NEWUSER, false},
		{"time", "Nothing today; the kernel may not shift clocks for a container.", unix.CLONE_NEWTIME, false},
	} {
		out = append(out, probe{"namespace " + n.name, n.required, n.cost, func(context.Context, *env) answer {
			return tried(tryNamespace(n.flag), "made and left")
		}})
	}
	return out
}

// noProgram is never there: executing it in a child that has already entered its namespaces ends the child with ENOENT,
// and any other error is the answer of the kernel to the namespaces.
const noProgram = "/nonexistent/berth-check"

func tryNamespace(flag uintptr) error {
	attr := &syscall.SysProcAttr{}
	switch flag {
	case unix.CLONE_NEWUSER:
		attr.Cloneflags = flag
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
		attr.GidMappings = attr.UidMappings
	case unix.CLONE_NEWTIME:
		attr.Unshareflags = flag // its bit is part of the exit signal in clone's flags
	default:
		attr.Cloneflags = flag
	}
	return forkOnly(attr)
}

func forkOnly(attr *syscall.SysProcAttr) error {
	_, err := syscall.ForkExec(noProgram, []string{noProgram}, &syscall.ProcAttr{Sys: attr})
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// userNamespace makes a user namespace with this mapping and returns it open. A child that is stopped at its exec by
// ptrace holds it for us and is killed before it ran one instruction of its own.
func userNamespace(m syscall.SysProcIDMap) (*os.File, error) {
	var f *os.File
	err := thread(func() error { // ptrace belongs to a thread
		pid, err := syscall.ForkExec("/proc/self/exe", []string{"berth"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{m}, GidMappings: []syscall.SysProcIDMap{m},
			Ptrace: true, Pdeathsig: unix.SIGKILL,
		}})
		if err != nil {
			return fmt.Errorf("make user namespace: %w", err)
		}
		defer func() {
			_ = unix.Kill(pid, unix.SIGKILL)
			for {
				var ws unix.WaitStatus
				if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil && !errors.Is(err, unix.EINTR) || ws.Signaled() || ws.Exited() {
					return
				}
			}
		}()
		f, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
		return err
	})
	return f, err
}
