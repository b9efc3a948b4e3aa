package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-node/berth/cri/stdio"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// forEachRuntime runs a test with a pod of each external runtime that Debian has.
func forEachRuntime(t *testing.T, test func(t *testing.T, n *node, handler string)) {
	t.Helper()
	for _, name := range []string{"crun", "runc"} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Skipf("needs the package %s: %v", name, err)
			}
			n := newNode(t)
			test(t, n, name)
			for _, p := range n.core.pods.Table.List(nil) {
				if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.Id}); err != nil {
					t.Error(err)
				}
			}
			if left, err := os.ReadDir(filepath.Join(n.core.host.Paths.Runtimes(), name)); err != nil || len(left) > 0 {
				t.Errorf("left in the runtime's root: %v, %v", left, err)
			}
		})
	}
}

func TestExternalRuntime(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, n *node, handler string) {
		pod, _ := n.podOf(t, handler, "web", nil)
		id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
			cfg.Linux.Resources.MemoryLimitInBytes = 64 << 20
			cfg.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b")}}
		}, "sh", "-c", "trap 'exit 7' TERM; echo out; echo err >&2; while :; do sleep 0.05; done")
		// By then it is executed, and has its trap.
		eventually(t, func() bool { return strings.Contains(logText(t, statusOf(t, n.Server, id).LogPath), "err\n") })
		if left, err := os.ReadDir(filepath.Join(n.core.host.Paths.Runtimes(), handler)); err != nil || len(left) != 1 {
			t.Errorf("in the runtime's root: %v, %v", left, err)
		}
		for script, want := range map[string]string{
			"hostname": "web", "echo $A$FROM_IMAGE": "b1", "cat /data/file": "from the image", "cat /proc/1/comm": "sh",
			"ip -4 -o addr show eth0 | grep -c 10.199.": "1", "touch /sys/x 2>/dev/null || echo ro": "ro",
			"grep -w Seccomp: /proc/self/status": "Seccomp:\t0",
		} {
			if got := n.sh(t, id, script); got != want {
				t.Errorf("%s: got %q, want %q", script, got, want)
			}
		}
		st, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil || st.Stats.Memory.UsageBytes.Value == 0 || st.Stats.Memory.AvailableBytes.Value == 0 {
			t.Errorf("stats: got %v, %v", st, err)
		}
		_, err = n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
		})
		st, serr := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil || serr != nil || st.Stats.Memory.AvailableBytes.Value < 100<<20 {
			t.Errorf("after the update: got %v, %v, %v", st, err, serr)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
			t.Fatal(err)
		}
		cs := statusOf(t, n.Server, id)
		if cs.ExitCode != 7 || cs.Reason != "Error" || logText(t, cs.LogPath) != "out\nerr\n" {
			t.Errorf("got %v, log %q", cs, logText(t, cs.LogPath))
		}
		if l := n.leaks(t); hasPrefix(l, "cgroup "+n.cfg.CgroupRoot+"/pod-web/"+id) || hasPrefix(l, "mount "+n.core.host.Paths.Container(id).Rootfs()) {
			t.Errorf("an exited container has %q", l)
		}
		for range 2 {
			if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
			if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestExternalRuntimeExec(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, n *node, handler string) {
		pod, _ := n.podOf(t, handler, "a", nil)
		id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
			securityOf(cfg).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		}, "sleep", "1000")
		r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo o; echo e >&2; exit 5"}})
		if err != nil || r.ExitCode != 5 || string(r.Stdout) != "o\n" || string(r.Stderr) != "e\n" {
			t.Errorf("got %v, %v", r, err)
		}
		if got := n.sh(t, id, "grep -w Seccomp: /proc/self/status"); got != "Seccomp:\t2" {
			t.Errorf("filter of an exec: got %q", got)
		}
		// What the runtime is started with it hands on: that must not be the host's device, whose mode could be changed
		// through it.
		var st unix.Stat_t
		if err := unix.Stat("/dev/null", &st); err != nil {
			t.Fatal(err)
		}
		host := fmt.Sprintf("%d:%d", st.Dev, st.Ino)
		if got := n.sh(t, id, "stat -L -c %t:%T /proc/self/fd/0 /proc/1/fd/0; stat -L -c %d:%i /proc/self/fd/0 /proc/1/fd/0"); !strings.HasPrefix(got, "1:3\n1:3\n") || strings.Contains(got, host) {
			t.Errorf("the null devices of an exec and the container are %q, the host's is %s", got, host)
		}
		_, err = n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{
			ContainerId: id, Cmd: []string{"sh", "-c", "sleep 4711 & sleep 4712"}, Timeout: 1,
		})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		eventually(t, func() bool { return !strings.Contains(n.sh(t, id, "ps"), "471") })
		for cmd, want := range map[string]stdio.Unexecuted{"nosuchthing": {Code: 127, Message: "not found in $PATH"}, "/etc/passwd": {Code: 126, Message: "ermission denied"}} {
			_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{cmd}})
			if got, ok := stdio.NotExecuted(err, []string{cmd}); !ok || got.Code != want.Code || !strings.Contains(got.Message, want.Message) {
				t.Errorf("exec of %s: got %+v, %v", cmd, got, err)
			}
		}
		e, err := n.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = executors(t, e.Url)["spdy"]().StreamWithContext(t.Context(), remotecommand.StreamOptions{
			Stdin: strings.NewReader("while [ \"$(stty size)\" != '17 91' ]; do sleep 0.02; done; readlink /proc/self/fd/0; exit 4\n"), Stdout: &out, Tty: true,
			TerminalSizeQueue: &sizes{{Width: 91, Height: 17}},
		})
		if err == nil || !strings.Contains(err.Error(), "4") || !strings.Contains(out.String(), "/dev/pts/") {
			t.Errorf("terminal: got %q, %v", out.String(), err)
		}
		// The keeper takes that away in its own time.
		eventually(t, func() bool {
			left, err := os.ReadDir(n.core.host.Paths.Container(id).RuntimeRun())
			return err == nil && len(left) == 0
		})
	})
}

// TestExternalRuntimeExecGivenUp gives execs up at any moment, also while the runtime is at work: neither the command
// nor the runtime is left behind, and the container goes on.
func TestExternalRuntimeExecGivenUp(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, n *node, handler string) {
		pod, _ := n.podOf(t, handler, "a", nil)
		id := n.run(t, pod, "main", nil, "sleep", "1000")
		nap := fmt.Sprint(6_000_000 + os.Getpid())
		left := func() (out []string) {
			files, err := filepath.Glob("/proc/[0-9]*/cmdline")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				b, err := os.ReadFile(f)
				words := string(b)
				if err == nil && (strings.Contains(words, nap) || strings.Contains(words, id) && strings.Contains(words, "\x00exec\x00")) {
					out = append(out, filepath.Dir(f)+" "+strings.ReplaceAll(words, "\x00", " "))
				}
			}
			return out
		}
		giveUp := func(ctx context.Context) {
			t.Helper()
			script := "echo > /began; sleep " + nap + " & sleep " + nap
			if _, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}}); err == nil {
				t.Error("the command has ended")
			}
		}
		began := fmt.Sprintf("/proc/%d/root/began", n.initPid(t, id))
		for i := range 40 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*2*time.Millisecond)
			giveUp(ctx)
			cancel()
		}
		if err := os.Remove(began); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { giveUp(ctx) })
		eventually(t, func() bool { _, err := os.Stat(began); return err == nil })
		cancel()
		done.Wait()
		eventually(t, func() bool { return len(left()) == 0 })
		if got := n.sh(t, id, "echo ok"); got != "ok" {
			t.Errorf("got %q", got)
		}
		// The keeper takes that away in its own time.
		eventually(t, func() bool {
			left, err := os.ReadDir(n.core.host.Paths.Container(id).RuntimeRun())
			return err == nil && len(left) == 0
		})
	})
}

func TestExternalRuntimeEnds(t *testing.T) {
	forEachRuntime(t, func(t *testing.T, n *node, handler string) {
		pod, _ := n.podOf(t, handler, "a", nil)
		id := n.run(t, pod, "oom", func(cfg *runtimeapi.ContainerConfig) { cfg.Linux.Resources.MemoryLimitInBytes = 32 << 20 },
			"dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1")
		if st := waitExited(t, n.Server, id); st.Reason != "OOMKilled" || st.ExitCode != 137 {
			t.Errorf("got %v", st)
		}
		id, err := n.tryRun(pod, "missing", nil, "nosuchthing")
		if err == nil || !strings.Contains(err.Error(), "not found in $PATH") {
			t.Errorf("got %v", err)
		}
		if st := statusOf(t, n.Server, id); st.Reason != "StartError" || st.ExitCode != 128 {
			t.Errorf("got %v", st)
		}
		if got := n.output(t, pod, "tty", func(cfg *runtimeapi.ContainerConfig) { cfg.Tty = true }, "sh", "-c", "test -t 0 && test -t 2 && echo yes"); got != "yes\r\n" {
			t.Errorf("terminal: got %q", got)
		}
		short := n.run(t, pod, "short", nil, "sh", "-c", "sleep 0.3; exit 3")
		pid := n.initPid(t, short)
		long := n.run(t, pod, "long", nil, "sleep", "4713")
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		// Its keeper has reaped it.
		eventually(t, func() bool { _, err := os.Stat("/proc/" + itoa(pid)); return err != nil })
		n.open(t)
		if st := waitExited(t, n.Server, short); st.ExitCode != 3 {
			t.Errorf("ended while nobody looked: got %v", st)
		}
		if got := n.sh(t, long, "echo still here"); got != "still here" {
			t.Errorf("got %q", got)
		}
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: long}); err != nil {
			t.Error(err)
		}
		if st := statusOf(t, n.Server, long); st.ExitCode != 137 {
			t.Errorf("got %v", st)
		}
		last := n.run(t, pod, "last", nil, "sleep", "4714")
		c, err := n.core.ctrs.Table.ByID.Get(last)
		if err != nil {
			t.Fatal(err)
		}
		kill(t, c.Sandbox.Record().Pid)
		select {
		case <-c.Done:
		case <-time.After(time.Minute):
			t.Fatal("a container without its keeper goes on")
		}
		eventually(t, func() bool { return !running(t, "4714") })
	})
}

func TestUnknownHandler(t *testing.T) {
	n := newNode(t)
	_, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.podConfig("a"), RuntimeHandler: "nosuch"})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `no runtime for this handler is configured: "nosuch"`) {
		t.Errorf("got %v", err)
	}
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil || st.RuntimeHandlers[0].Name != "" || !st.RuntimeHandlers[0].Features.RecursiveReadOnlyMounts {
		t.Fatalf("got %v, %v", st, err)
	}
	for _, h := range st.RuntimeHandlers[1:] {
		if h.Name == "runc" && !h.Features.RecursiveReadOnlyMounts {
			t.Errorf("runc since 1.1 says that it can mount recursively read-only: %v", h)
		}
	}
}

// TestRuntimeIsGone removes a container whose runtime is not installed any more.
func TestRuntimeIsGone(t *testing.T) {
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Skipf("needs the package crun: %v", err)
	}
	dir := t.TempDir()
	own := filepath.Join(dir, "my-crun")
	b, err := os.ReadFile(crun)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(own, b, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "handlers.yaml")
	if err := os.WriteFile(file, []byte("handlers: [{name: mine, path: "+own+", root: "+dir+"/state}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.cfg.HandlersFile = file
	n.open(t)
	pod, _ := n.podOf(t, "mine", "a", nil)
	n.run(t, pod, "main", nil, "sleep", "4715")
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	if running(t, "4715") {
		t.Error("its process still runs")
	}
	if left, _ := os.ReadDir(dir + "/state"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// ownRuntime is a node with the runtime "mine": a script that does something before, or instead of, what runc does.
func ownRuntime(t *testing.T, script string) (n *node, dir string) {
	t.Helper()
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skipf("needs the package runc: %v", err)
	}
	dir = t.TempDir()
	own, file := filepath.Join(dir, "my-runc"), filepath.Join(dir, "handlers.yaml")
	if err := os.WriteFile(own, []byte("#!/bin/sh\n"+script+"\nexec "+runc+` "$@"`+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("handlers: [{name: mine, path: "+own+", root: "+dir+"/state}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	n = newNode(t)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.cfg.HandlersFile = file
	n.open(t)
	return n, dir
}

// TestRuntimeDoesNotDelete has a runtime say that it has deleted a container, and keep what it has of it, as runc does
// where it cannot remove the group.
func TestRuntimeDoesNotDelete(t *testing.T) {
	n, dir := ownRuntime(t, `for a; do [ "$a" != delete ] || exit 0; done`)
	pod, _ := n.podOf(t, "mine", "a", nil)
	n.run(t, pod, "main", nil, "sleep", "1000")
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir + "/state"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestRuntimeIsKilledBetweenNames gives up an exec when the runtime has written the process's number, and not yet given
// the file its name: runc would never write over what is left there.
func TestRuntimeIsKilledBetweenNames(t *testing.T) {
	n, _ := ownRuntime(t, `for a; do
	case "$a" in
	exec) entered=y ;;
	*/*.pid) [ -z "$entered" ] || { echo 1 > "${a%/*}/.${a##*/}"; exec sleep 1000; } ;;
	esac
done`)
	pod, _ := n.podOf(t, "mine", "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	left := func() []os.DirEntry {
		files, err := os.ReadDir(n.core.host.Paths.Container(id).RuntimeRun())
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if _, err := n.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}}); err == nil {
			t.Error("the command has ended")
		}
	})
	eventually(t, func() bool { return len(left()) > 0 })
	cancel()
	done.Wait()
	eventually(t, func() bool { return len(left()) == 0 })
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
}
