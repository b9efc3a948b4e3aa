package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// within has a container join the PID namespace of a process.
func within(s *specs.Spec, path string) {
	s.Linux.Namespaces[slices.IndexFunc(s.Linux.Namespaces, isPID)].Path = path
}

// frozen says whether the group of a container is, or is about to be.
func frozen(t *testing.T, id string) bool {
	t.Helper()
	for name, on := range map[string]string{"freezer.self_freezing": "1", "cgroup.freeze": "1"} {
		if b, err := os.ReadFile(filepath.Join(freezer(id), name)); err == nil {
			return strings.TrimSpace(string(b)) == on
		}
	}
	t.Fatalf("%s has no freezer", freezer(id))
	return false
}

// setFrozen freezes or thaws a container as its user would.
func setFrozen(t *testing.T, id string, on bool) {
	t.Helper()
	name, text := "freezer.state", map[bool]string{true: "FROZEN", false: "THAWED"}[on]
	if _, err := os.Stat(filepath.Join(freezer(id), name)); err != nil {
		name, text = "cgroup.freeze", map[bool]string{true: "1", false: "0"}[on]
	}
	if err := os.WriteFile(filepath.Join(freezer(id), name), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
}

// patient has a start hold up others for as long as a busy machine takes.
func patient(c *keeper.Config) { c.HoldUp(time.Minute, time.Minute) }

func needFreezer(t *testing.T) {
	t.Helper()
	needRoot(t)
	for _, f := range []string{"/sys/fs/cgroup/freezer/tasks", "/sys/fs/cgroup/cgroup.procs"} {
		if _, err := os.Stat(f); err == nil {
			return
		}
	}
	t.Skip("needs a freezer cgroup")
}

// until waits for something that is about to become so.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// TestContainerSeesNoInit starts containers in a PID namespace in which one looks into all it can see. Their init is
// born there with the host's root, mounts and capabilities.
func TestContainerSeesNoInit(t *testing.T) {
	needFreezer(t)
	for name, tc := range map[string]struct {
		shared  bool
		runtime string
	}{
		"shared PID namespace": {true, ""}, "that of a target": {false, ""}, "by runc": {true, "runc"}, "by crun": {true, "crun"},
	} {
		t.Run(name, func(t *testing.T) {
			shared := tc.shared
			p := newPod(t, func(c *keeper.Config) { c.PID = shared }, patient)
			path := p.NSPath("pid")
			looker, e := p.peep("nothing-to-be-found", func(s *specs.Spec) {
				if shared {
					within(s, path)
				}
				s.Process.Args = append(s.Process.Args, "shared")
			})
			if !shared {
				path = fmt.Sprintf("/proc/%d/ns/pid", e.Pid)
			}
			until(t, "looking", func() bool {
				return slices.ContainsFunc(p.log(looker.ID), func(l string) bool { return strings.HasSuffix(l, "looking") })
			})
			for i := range 20 {
				var group sync.WaitGroup
				for j := range 1 + i%2 { // also two at once, of which one could look at the other
					s := p.spec("c", "/bin/true")
					within(s, path)
					s.Version = "1.0.2" // which all runtimes know
					if j == 0 {
						s.Process.Capabilities = onlyPtrace()
					}
					c := p.container(s)
					if tc.runtime != "" {
						c.Runtime = p.runtime(tc.runtime)
					}
					group.Go(func() {
						if _, err := p.Run(t.Context(), c); err != nil {
							t.Error(err)
						}
					})
				}
				if _, _, err := p.execIn(looker.ID, e.Pid, func(x *keeper.Exec) {
					x.Process.Capabilities, x.Process.NoNewPrivileges = onlyPtrace(), true
					x.CgroupProcs = []string{freezer(looker.ID) + "/cgroup.procs"}
				}, "true"); err != nil {
					t.Error(err)
				}
				group.Wait()
				if found, _ := p.saw(looker); len(found) > 0 {
					t.Fatalf("at start %d a container found:\n%s", i+1, strings.Join(found, "\n"))
				}
			}
			if frozen(t, looker.ID) {
				t.Error("the container is left frozen")
			}
		})
	}
}

// runtime is another OCI runtime of the machine.
func (p *pod) runtime(name string) *keeper.Runtime {
	path, err := exec.LookPath(name)
	if err != nil {
		p.t.Skip(err)
	}
	return &keeper.Runtime{Command: []string{path, "--root", filepath.Join(p.dir, "runtime")}, CgroupV1: true}
}

// TestLookersRunInTurn has containers that all look be started at once: no two starts may overlap.
func TestLookersRunInTurn(t *testing.T) {
	needFreezer(t)
	p := newPod(t, func(c *keeper.Config) { c.PID = true }, patient)
	var lookers []keeper.Container
	first, _ := p.peep("nothing-to-be-found", func(s *specs.Spec) {
		within(s, p.NSPath("pid"))
		s.Process.Args = append(s.Process.Args, "shared")
	})
	lookers = append(lookers, first)
	spec, err := readSpecOf(first)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		lookers = append(lookers, p.container(spec))
	}
	var group sync.WaitGroup
	for _, c := range lookers[1:] {
		group.Go(func() {
			if _, err := p.Run(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, c := range lookers {
		if found, _ := p.saw(c); len(found) > 0 {
			t.Errorf("%s found:\n%s", c.ID, strings.Join(found, "\n"))
		}
		if frozen(t, c.ID) {
			t.Errorf("%s is left frozen", c.ID)
		}
	}
}

// hanging is a container of the shared PID namespace whose start goes on until the named pipe is written to.
func (p *pod) hanging(gate string) keeper.Container {
	s := p.spec("c", "/bin/sleep", "1000")
	within(s, p.NSPath("pid"))
	s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "read x < " + gate}}}}
	return p.container(s)
}

// sleeper is a container of the shared PID namespace that may trace others.
func (p *pod) sleeper() (keeper.Container, int) {
	p.t.Helper()
	// One process is stopped.
	s := p.spec("c", "/bin/sh", "-c", "sleep 1000 & kill -STOP $!; echo ready; exec sleep 1000")
	within(s, p.NSPath("pid"))
	s.Process.Capabilities = onlyPtrace()
	limit := int64(100)
	s.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
	c := p.container(s)
	pid, err := p.Run(p.t.Context(), c)
	if err != nil {
		p.t.Fatal(err)
	}
	until(p.t, "ready", func() bool { return len(p.log(c.ID)) > 0 })
	// No other can be made. Not before it runs: its init has threads, and ends when it cannot have one more.
	limitProcesses(p.t, c.ID, 2)
	return c, pid
}

// limitProcesses has a container's cgroup take so many. On v1 an exec of these tests joins the freezer alone.
func limitProcesses(t testing.TB, id string, n int) {
	t.Helper()
	dir := "/sys/fs/cgroup/pids"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		dir = "/sys/fs/cgroup"
	}
	f, err := os.OpenFile(filepath.Join(dir, cgroupRoot(), id, "pids.max"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return // no such controller
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(strconv.Itoa(n)); err != nil {
		t.Fatal(err)
	}
}

func (p *pod) gate() string {
	gate := filepath.Join(p.dir, "gate")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return gate
}

// TestFrozenIsThawed ends a start that goes on in each way there is, and looks whether others go on.
func TestFrozenIsThawed(t *testing.T) {
	needFreezer(t)
	launchers := func(p *pod) []int {
		var pids []int
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.Pid(), p.Pid()))
		for f := range strings.FieldsSeq(string(b)) {
			n, _ := strconv.Atoi(f)
			if cmd, _ := os.ReadFile("/proc/" + f + "/cmdline"); strings.HasPrefix(string(cmd), "berth-helper\x00start") {
				pids = append(pids, n)
			}
		}
		return pids
	}
	for name, tc := range map[string]struct {
		end   func(p *pod, c keeper.Container, gate string)
		fails bool
	}{
		"it succeeds": {func(p *pod, _ keeper.Container, gate string) { write(p.t, gate, "go\n", 0) }, false},
		"the agent kills it": {func(p *pod, c keeper.Container, _ string) {
			if err := p.Signal(p.t.Context(), c.ID, unix.SIGKILL); err != nil {
				p.t.Error(err)
			}
		}, true},
		"its launcher is killed": {func(p *pod, _ keeper.Container, _ string) {
			for _, pid := range launchers(p) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, func(c *keeper.Config) { c.PID = true }, patient)
			looker, pid := p.sleeper()
			gate := p.gate()
			c := p.hanging(gate)
			done := make(chan error, 1)
			go func() {
				_, err := p.Run(context.WithoutCancel(t.Context()), c)
				done <- err
			}()
			until(t, "frozen", func() bool { return frozen(t, looker.ID) })
			// An exec in what is frozen waits, and nobody else does.
			limitProcesses(t, looker.ID, 4)
			waits, cancel := context.WithCancel(t.Context())
			probe := make(chan error, 1)
			go func() {
				_, err := p.Capture(waits, keeper.Exec{
					ContainerID: looker.ID, Pid: pid, Process: p.spec(looker.ID, "/bin/true").Process,
					CgroupProcs: []string{freezer(looker.ID) + "/cgroup.procs"},
				}, io.Discard, io.Discard)
				probe <- err
			}()
			if err := p.Signal(t.Context(), looker.ID, unix.SIGWINCH); err != nil {
				t.Errorf("the keeper does not answer: %v", err)
			}
			until(t, "launcher", func() bool { return len(launchers(p)) > 0 })
			tc.end(p, c, gate)
			if err := <-done; (err != nil) != tc.fails {
				t.Errorf("started: %v", err)
			}
			until(t, "thawed", func() bool { return !frozen(t, looker.ID) })
			if err := <-probe; err != nil {
				t.Errorf("exec in the container that was frozen: %v", err)
			}
			cancel()
		})
	}
}

// TestFrozenByOthersStays freezes a container before one is started beside it, and ends the keeper while another is
// frozen.
func TestFrozenByOthersStays(t *testing.T) {
	needFreezer(t)
	p := newPod(t, func(c *keeper.Config) { c.PID = true }, patient)
	looker, _ := p.sleeper()
	setFrozen(t, looker.ID, true)
	defer setFrozen(t, looker.ID, false)
	s := p.spec("c", "/bin/sleep", "1000")
	within(s, p.NSPath("pid"))
	if _, err := p.Run(t.Context(), p.container(s)); err != nil {
		t.Fatal(err)
	}
	if !frozen(t, looker.ID) {
		t.Error("what somebody else has frozen is thawed")
	}
}

// TestStopWhileFrozen ends a keeper that has frozen a container: nothing may be left.
func TestStopWhileFrozen(t *testing.T) {
	needFreezer(t)
	p := newPod(t, func(c *keeper.Config) { c.PID = true }, patient)
	looker, pid := p.sleeper()
	c := p.hanging(p.gate())
	done := make(chan error, 1)
	go func() {
		_, err := p.Run(context.WithoutCancel(t.Context()), c)
		done <- err
	}()
	until(t, "frozen", func() bool { return frozen(t, looker.ID) })
	if err := p.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("it is said to be started")
	}
	await(t, pid)
}

// TestUnfreezable is a start beside a container that cannot be frozen.
func TestUnfreezable(t *testing.T) {
	needFreezer(t)
	p := newPod(t, func(c *keeper.Config) { c.PID = true }, patient)
	s := p.spec("c", "/bin/sleep", "1000")
	within(s, p.NSPath("pid"))
	s.Process.Capabilities = onlyPtrace()
	looker := p.container(s)
	looker.Freezer = ""
	if _, err := p.Run(t.Context(), looker); err != nil {
		t.Fatal(err)
	}
	other := p.spec("c", "/bin/true")
	within(other, p.NSPath("pid"))
	_, err := p.Run(t.Context(), p.container(other))
	if err == nil || !strings.Contains(err.Error(), looker.ID+" has CAP_SYS_PTRACE") {
		t.Errorf("started beside a container that cannot be frozen: %v", err)
	}
	if _, err := p.Run(t.Context(), p.container(p.spec("c", "/bin/true"))); err != nil {
		t.Errorf("with a PID namespace of its own: %v", err)
	}
}
