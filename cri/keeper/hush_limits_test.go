package keeper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/cri/keeper"
)

// slow is a container of the shared PID namespace that may trace others, and whose processes freeze when the test says
// so: its freezer is files of the test's.
func (p *pod) slow() (looker keeper.Container, freezes func()) {
	p.t.Helper()
	s := p.spec("c", "/bin/sleep", "1000")
	within(s, p.NSPath("pid"))
	s.Process.Capabilities = onlyPtrace()
	looker = p.container(s)
	looker.Freezer = p.t.TempDir()
	write(p.t, filepath.Join(looker.Freezer, "cgroup.freeze"), "0", 0o600)
	write(p.t, filepath.Join(looker.Freezer, "cgroup.events"), "populated 1\nfrozen 0\n", 0o600)
	if _, err := p.Run(p.t.Context(), looker); err != nil {
		p.t.Fatal(err)
	}
	return looker, func() {
		write(p.t, filepath.Join(looker.Freezer, "cgroup.events"), "populated 1\nfrozen 1\n", 0o600)
	}
}

// freezerText is what the keeper has last written to a container's freezer.
func freezerText(t *testing.T, c keeper.Container) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Freezer, "cgroup.freeze"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFreezeLimit has a container freeze too late for a start, and then in time for the next.
func TestFreezeLimit(t *testing.T) {
	for name, tc := range map[string]struct {
		limit   time.Duration
		refused string
	}{
		"too late": {time.Millisecond, "a process of it does not freeze"},
		"in time":  {time.Hour, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, func(c *keeper.Config) {
				c.PID = true
				c.HoldUp(tc.limit, time.Hour)
			})
			looker, freezes := p.slow()
			s := p.spec("c", "/bin/true")
			within(s, p.NSPath("pid"))
			c := p.container(s)
			done := make(chan error, 1)
			go func() {
				_, err := p.Run(t.Context(), c)
				done <- err
			}()
			if tc.refused == "" {
				until(t, "told to freeze", func() bool { return freezerText(t, looker) == "1" })
				freezes()
			}
			err := <-done
			switch {
			case tc.refused == "" && err != nil:
				t.Error(err)
			case tc.refused != "" && (err == nil || !strings.Contains(err.Error(), looker.ID+" has CAP_SYS_PTRACE") || !strings.Contains(err.Error(), tc.refused)):
				t.Errorf("started: %v", err)
			}
			until(t, "thawed", func() bool { return freezerText(t, looker) == "0" })
			if err := p.Signal(t.Context(), c.ID, 0); tc.refused != "" && err == nil {
				t.Error("what was refused runs")
			}
		})
	}
}

// TestLaunchLimit has a start hang that holds up another.
func TestLaunchLimit(t *testing.T) {
	needFreezer(t)
	p := newPod(t, func(c *keeper.Config) {
		c.PID = true
		c.HoldUp(time.Hour, time.Millisecond)
	})
	looker, pid := p.sleeper()
	c := p.hanging(p.gate())
	if _, err := p.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "it was not started in time") {
		t.Errorf("started: %v", err)
	}
	until(t, "thawed", func() bool { return !frozen(t, looker.ID) })
	limitProcesses(t, looker.ID, 4)
	if _, _, err := p.execIn(looker.ID, pid, func(x *keeper.Exec) {
		x.CgroupProcs = []string{freezer(looker.ID) + "/cgroup.procs"}
	}, "true"); err != nil {
		t.Errorf("exec in the container that was frozen: %v", err)
	}
}

// TestStartWithoutProgram has a runtime end its start when the init that it has made in the shared PID namespace still
// is what it was.
func TestStartWithoutProgram(t *testing.T) {
	needFreezer(t)
	p := newPod(t, func(c *keeper.Config) {
		c.PID = true
		c.HoldUp(time.Hour, 3*time.Second) // much longer than the other runtimes' starts take
	})
	looker, _ := p.sleeper()
	// Its init is a shell, which would not say that the program is executed before somebody writes to the gate.
	script := filepath.Join(p.dir, "runtime")
	write(t, script, `#!/bin/sh
for a; do
	test "$last" = --pid-file && file=$a
	last=$a
done
case " $* " in *" create "*) ;; *) exit 0 ;; esac
exec </dev/null >/dev/null 2>&1
nsenter --pid=`+p.NSPath("pid")+` /bin/sh -c 'read x < `+p.gate()+`; exec sleep 1000' &
children=/proc/$!/task/$!/children
while ! pid=$(tr -d ' ' < $children) || test -z "$pid" || test "$(readlink /proc/$pid/exe)" = "$(readlink /proc/$!/exe)"; do :; done
echo $pid > $file
kill -9 $!
`, 0o700)
	s := p.spec("c", "/bin/true")
	within(s, p.NSPath("pid"))
	c := p.container(s)
	c.Runtime = &keeper.Runtime{Command: []string{script}}
	if pid, err := p.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("started as %d: %v", pid, err)
	}
	until(t, "thawed", func() bool { return !frozen(t, looker.ID) })
}
