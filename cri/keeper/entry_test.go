package keeper_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// TestEntryProcessesAreNotTheContainersToStop has a container that stops every process it sees, again and again.
func TestEntryProcessesAreNotTheContainersToStop(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("while :; do kill -STOP -1 2>/dev/null; done")
	nap := strconv.Itoa(5_000_000 + os.Getpid())
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, _ = p.Capture(ctx, p.script(id, pid, "sleep "+nap), io.Discard, io.Discard)
		proc, err := p.Exec(ctx, p.script(id, pid, "sleep "+nap))
		cancel()
		if err == nil {
			if err := proc.Kill(unix.SIGKILL); err != nil {
				t.Error(err)
			}
			if _, err := proc.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			proc.Close()
		}
	}
	eventually(t, func() bool { return len(p.children("berth-exec")) == 0 && len(processes("sleep\x00"+nap)) == 0 })
}

// TestEntryProcessIsOutsideOfTheContainer looks at the parent of a program.
func TestEntryProcessIsOutsideOfTheContainer(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, CgroupProcs: cgroup(t, "exec"), Process: p.spec(id, "/bin/sleep", "1000").Process})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	entries := p.children("berth-exec")
	if len(entries) != 1 {
		t.Fatalf("entry processes are %q", entries)
	}
	entry := strings.Split(entries[0], "/")[2]
	for _, ns := range []string{"pid", "mnt"} {
		its, err := os.Readlink("/proc/" + entry + "/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if own, err := os.Readlink("/proc/self/ns/" + ns); err != nil || its != own {
			t.Errorf("entry process is in the %s namespace %s, not in %s, %v", ns, its, own, err)
		}
	}
	groups, err := os.ReadFile("/proc/" + entry + "/cgroup")
	if err != nil || strings.Contains(string(groups), cgroupRoot()+"/exec") {
		t.Errorf("entry process is in the container's cgroups: %s, %v", groups, err)
	}
	eventually(t, func() bool { // a moment after the program is told of
		status, err := os.ReadFile("/proc/" + entry + "/status")
		return err == nil && bytes.Contains(status, []byte("CapPrm:\t0000000000000000"))
	})
	if err := proc.Kill(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := proc.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestEntryProcessEndsWithItsKeeper kills the keeper alone.
func TestEntryProcessEndsWithItsKeeper(t *testing.T) {
	p := newPod(t)
	id, pid := p.sh("sleep 1000")
	proc, err := p.Exec(t.Context(), keeper.Exec{ContainerID: id, Pid: pid, Process: p.spec(id, "/bin/sleep", "1000").Process})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	entries := p.children("berth-exec")
	if len(entries) != 1 {
		t.Fatalf("entry processes are %q", entries)
	}
	if err := unix.Kill(p.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		comm, err := os.ReadFile("/proc/" + strings.Split(entries[0], "/")[2] + "/comm")
		return err != nil || string(comm) != "berth-exec\n"
	})
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return unix.Kill(proc.Pid, 0) != nil })
}

// TestExecUnderAProfileWithoutFork has a filter that forbids what the settler needs. With no_new_privs the program
// loads it itself.
func TestExecUnderAProfileWithoutFork(t *testing.T) {
	p := newPod(t)
	profile := func(a specs.LinuxSeccompAction) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"clone", "clone3", "fork", "vfork"}, Action: a}}}
	}
	for _, tc := range []struct {
		action specs.LinuxSeccompAction
		nnp    bool
		want   string
	}{
		{specs.ActErrno, true, ""},
		{specs.ActKillProcess, true, ""},
		{specs.ActErrno, false, "seccomp profile"},
		{specs.ActKillProcess, false, "seccomp profile"},
	} {
		change := func(pr *specs.Process) { pr.NoNewPrivileges = tc.nnp }
		c, pid, bpf := p.confined(profile(tc.action), change, "/bin/sleep", "1000")
		_, e, err := p.execIn(c.ID, pid, func(e *keeper.Exec) { e.SeccompBPF = bpf; change(e.Process) }, "true")
		if tc.want == "" && (err != nil || e.Code != 0) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s, no_new_privs %v: ended with %+v, %v", tc.action, tc.nnp, e, err)
		}
	}
}

// TestExecOnAFileSystemThatDoesNotAnswer has a working directory on one: only that exec waits, until it is given up.
func TestExecOnAFileSystemThatDoesNotAnswer(t *testing.T) {
	needRoot(t)
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("needs /dev/fuse: ", err)
	}
	p := newPod(t)
	dir := filepath.Join(p.rootfs, "hang")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err = unix.Mount("hang", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse))
	if err != nil {
		unix.Close(fuse)
		t.Skip("needs FUSE: ", err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		unix.Close(fuse) // whoever waits has an error now
	})
	id, pid := p.sh("sleep 1000")
	hang := p.script(id, pid, "true")
	hang.Process.Cwd = "/hang/there"
	ended := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, err := p.Capture(ctx, hang, io.Discard, io.Discard)
		ended <- err
	}()
	go func() {
		proc, err := p.Exec(ctx, hang)
		if err == nil {
			proc.Close()
		}
		ended <- err
	}()
	eventually(t, func() bool { return len(p.children("berth-exec")) == 2 })
	// The keeper goes on.
	if out, e, err := p.execIn(id, pid, nil, "echo", "x"); err != nil || e.Code != 0 || out != "x\n" {
		t.Errorf("another exec said %q, ended with %+v, %v", out, e, err)
	}
	cancel()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("an exec that was given up has no error")
		}
	}
	eventually(t, func() bool { return len(p.children("berth-exec")) == 0 })
}

// TestPodsProcess1IsNotTheContainersToEnd signals process 1 of a shared PID namespace as root in there.
func TestPodsProcess1IsNotTheContainersToEnd(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.PID = true })
	spec := p.spec("c", "/bin/sh", "-c", "for s in HUP INT TERM USR1 STOP TSTP KILL; do kill -$s 1 || echo $s; done; grep State: /proc/1/status")
	spec.Linux.Namespaces[slices.IndexFunc(spec.Linux.Namespaces, isPID)].Path = p.NSPath("pid")
	c := p.container(spec)
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if e := p.exit(c.ID); e.Code != 0 {
		t.Errorf("ended with %+v", e)
	}
	if l := p.log(c.ID); len(l) != 1 || !strings.HasSuffix(l[0], "State:\tS (sleeping)") {
		t.Errorf("process 1 is %q", l)
	}
}
