package keeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/plain"
)

// meddled is systemd with somebody who does something as soon as a scope is made, and has the agent hear an error.
type meddled struct {
	*systemd.Driver
	then func(group string) error
}

func (m meddled) MakeScope(group string, props []dbus.Property) error {
	err := m.Driver.MakeScope(group, props)
	if err == nil {
		err = m.then(group)
	}
	return err
}

// inScope makes a container ordinary, while somebody does something to who holds its scope.
func (p *pod) inScope(c *keeper.Container, spec *specs.Spec, then func(group string, holder int) error) error {
	m, err := machine()
	if err != nil {
		return err
	}
	d, err := units()
	if err != nil {
		return err
	}
	pid := 0
	s, err := plain.Of(spec, m.WithScopes(plain.Scopes{
		Systemd: meddled{d, func(group string) error { return then(group, pid) }},
		Hold: func() (plain.Holder, error) {
			h, err := keeper.NewHolder(p.config.Helper)
			if err == nil {
				pid = h.Pid()
			}
			return h, err
		},
	}))
	if err == nil {
		err = s.Prepare(spec, c.Bundle, c.StateDir)
	}
	if err == nil {
		c.Plain = s
	}
	return err
}

func nothing(string, int) error { return nil }

// threeOf has a container end with 3.
func (p *pod) threeOf(t *testing.T, c keeper.Container) {
	t.Helper()
	if _, err := p.Run(t.Context(), c); err != nil {
		t.Errorf("%s: %v", c.ID, err)
		return
	}
	if e := p.exit(c.ID); e.Code != 3 {
		t.Errorf("%s: exit code is %d", c.ID, e.Code)
	}
}

// TestScopeEndsWhileItIsMade: no group is made that systemd does not know.
func TestScopeEndsWhileItIsMade(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	p.old = true
	spec := p.spec("c", "/bin/sh", "-c", "exit 3")
	c := p.container(spec)
	err := p.inScope(&c, spec, func(group string, holder int) error {
		defer awaitGone(t, "/sys/fs/cgroup"+group)
		return unix.Kill(holder, unix.SIGKILL)
	})
	if err == nil {
		t.Error("it is made")
	}
	if _, err := os.Stat(groupsOf(c.ID)[0]); err == nil {
		t.Error("a group is left")
	}
	p.threeOf(t, c)
	noUnits(t)
}

func awaitGone(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(dir); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s is left", dir)
			return
		}
	}
}

// TestScopeUnheardOf: systemd ends all connections when it begins anew, and what it would have said of a scope is lost.
func TestScopeUnheardOf(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	for _, lost := range []error{systemd.ErrUnanswered, errors.New("it exists")} {
		p.old = true
		spec := p.spec("c", "/bin/sh", "-c", "exit 3")
		c := p.container(spec)
		if err := p.inScope(&c, spec, func(string, int) error { return lost }); err != nil {
			t.Errorf("it is not made: %v", err)
		}
		c.Left = func(why string) { t.Errorf("left to libcontainer: %s", why) }
		p.threeOf(t, c)
	}
	noUnits(t)
}

// TestScopeOfSomebodyElse stays, and who is in it.
func TestScopeOfSomebodyElse(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	p.old = true
	spec := p.spec("c", "/bin/sh", "-c", "exit 3")
	c := p.container(spec)
	other := exec.Command("systemd-run", "-q", "--scope", "--slice="+testSlice(), "--unit="+unitOf(c.ID), "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	active := func() bool {
		return strings.Contains(systemctl(t, "show", "-p", "ActiveState", unitOf(c.ID)), "=active")
	}
	for deadline := time.Now().Add(time.Minute); !active(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not start")
		}
		time.Sleep(time.Millisecond)
	}
	if err := p.inScope(&c, spec, nothing); err == nil {
		t.Error("it is made")
	} else {
		t.Log(err)
	}
	if !active() {
		t.Error("it is stopped")
	}
	_ = other.Process.Kill()
	<-ended
	noUnits(t)
}

// TestScopeTooSmall: what cannot live in its limits ends the same both ways, and nothing is left.
func TestScopeTooSmall(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	p.old = true
	for _, limit := range []int64{1, 256 << 10} {
		var both [2]map[string]int
		for k := range both {
			both[k] = map[string]int{}
			for range 2 {
				spec := p.spec("c", "/bin/sh", "-c", "exit 3")
				spec.Linux.Resources = &specs.LinuxResources{
					Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}, Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit},
					CPU: &specs.LinuxCPU{Quota: new(int64(5000)), Period: new(uint64(100000))},
				}
				c := p.container(spec)
				if k == 1 {
					if err := p.inScope(&c, spec, nothing); err != nil {
						t.Log(limit, err)
					}
				}
				c.Left = func(why string) { t.Log(limit, "left: ", why) }
				_, err := p.Run(t.Context(), c)
				if err != nil {
					both[k][strings.ReplaceAll(err.Error(), c.ID, "ID")]++
					continue
				}
				e := p.exit(c.ID)
				both[k][fmt.Sprintf("%d, OOM %t", e.Code, e.OOMKilled)]++
			}
		}
		t.Logf("with %d bytes by libcontainer %v, in C %v", limit, both[0], both[1])
	}
	noUnits(t)
}

// TestScopesAtOnce: many start while systemd reads its units again, and begins anew.
func TestScopesAtOnce(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	p.old = true
	const many = 30
	var all [many]keeper.Container
	var of [many]*specs.Spec
	for i := range all {
		of[i] = p.spec("c", "/bin/sh", "-c", "exit 3")
		all[i] = p.container(of[i])
	}
	ctx, cancel := context.WithCancel(t.Context())
	var again, wait sync.WaitGroup
	again.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			how := "daemon-reload"
			if i == 3 {
				how = "daemon-reexec"
			}
			_ = exec.Command("systemctl", how).Run()
			time.Sleep(300 * time.Millisecond)
		}
	})
	var mu sync.Mutex
	left, longest := map[string]int{}, time.Duration(0)
	for i := range all {
		wait.Go(func() {
			c, began := all[i], time.Now()
			note := func(why string) {
				mu.Lock()
				defer mu.Unlock()
				left[strings.ReplaceAll(why, c.ID, "ID")]++
			}
			if err := p.inScope(&c, of[i], nothing); err != nil {
				note(err.Error())
			}
			mu.Lock()
			longest = max(longest, time.Since(began))
			mu.Unlock()
			c.Left = note
			if _, err := p.Run(t.Context(), c); err != nil {
				t.Errorf("%s: %v", c.ID, err)
			}
		})
	}
	wait.Wait()
	cancel()
	again.Wait()
	t.Logf("%v are left to libcontainer; the longest took %v to make its scope", left, longest)
	for _, c := range all {
		if e := p.exit(c.ID); e.Code != 3 {
			t.Errorf("%s: exit code is %d", c.ID, e.Code)
		}
	}
	noUnits(t)
}

// TestScopeKeepsNewLimits: what a running container was given later it has also when systemd has read its units again.
func TestScopeKeepsNewLimits(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	d, err := units()
	if err != nil {
		t.Fatal(err)
	}
	var both [2][]string
	for k, old := range []bool{true, false} {
		p.old = old
		spec := p.spec("c", "/bin/sleep", "1000")
		spec.Linux.Resources = &specs.LinuxResources{
			Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}, Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20))},
			CPU:     &specs.LinuxCPU{Shares: new(uint64(512)), Quota: new(int64(50000)), Period: new(uint64(100000)), Cpus: "0"},
			Unified: map[string]string{"memory.oom.group": "1"},
		}
		c := p.container(spec)
		if !old && c.Plain == nil {
			t.Fatal("it is not ordinary")
		}
		c.Left = func(why string) { t.Errorf("left to libcontainer: %s", why) }
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		err := d.Update(groupOf(c.ID), &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: new(int64(96 << 20))},
			CPU:    &specs.LinuxCPU{Shares: new(uint64(1024)), Quota: new(int64(70000)), Period: new(uint64(100000))},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, how := range []string{"", "daemon-reload", "daemon-reexec"} {
			if how != "" {
				systemctl(t, how)
			}
			for _, l := range append(settings(c.ID), shownUnit(t, c.ID)...) {
				both[k] = append(both[k], how+": "+strings.ReplaceAll(l, c.ID, "ID"))
			}
			for file, want := range map[string]string{"memory.max": "100663296", "cpu.max": "70000 100000", "cpuset.cpus": "0"} {
				b, err := os.ReadFile(groupsOf(c.ID)[0] + "/" + file)
				if got := strings.TrimSpace(string(b)); got != want {
					t.Errorf("%t: %s: %s is %q, %v", old, how, file, got, err)
				}
			}
		}
		if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.exit(c.ID)
	}
	if missing, more := differ(both[0], both[1]); len(missing)+len(more) > 0 {
		t.Errorf("by libcontainer only:\n%s\nin C only:\n%s", strings.Join(missing, "\n"), strings.Join(more, "\n"))
	}
	noUnits(t)
}

var numbers = regexp.MustCompile(`@au \[[0-9]+\]`)

// TestScopeByOddNames: whatever systemd makes of a name, both ways make the same of it.
func TestScopeByOddNames(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	for _, path := range []string{
		testSlice() + ":t:a@b", testSlice() + `:t:a\x2db`, testSlice() + ":t:ä", testSlice() + ":t: ", testSlice() + ":t:a%b",
		testSlice() + ":t:" + strings.Repeat("x", 300), testSlice() + ":t:..", testSlice() + ":t:a.scope", "-.slice:t:berth-odd",
		"berth--odd.slice:t:c", "-odd.slice:t:c", ".slice:t:c", "berthodd@1.slice:t:c", "system.slice:t:berth-odd",
	} {
		var both [2]string
		for k := range both {
			p.old = true
			spec := p.spec("c", "/bin/sh", "-c", "exit 3")
			c := p.container(spec)
			spec.Linux.CgroupsPath = path
			b, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			write(t, c.Bundle+"/config.json", string(b), 0o600)
			how := ""
			if k == 1 {
				if err := p.inScope(&c, spec, nothing); err != nil {
					how = err.Error()
				}
			}
			c.Left = func(why string) { how += ", left: " + why }
			if _, err = p.Run(t.Context(), c); err == nil {
				both[k] = fmt.Sprint(p.exit(c.ID).Code)
			} else {
				both[k] = numbers.ReplaceAllString(strings.ReplaceAll(err.Error(), c.ID, "ID"), "@au [PID]")
			}
			t.Logf("%.40s: %.200s: %.200s", path, both[k], how)
		}
		if both[0] != both[1] {
			t.Errorf("%s: by libcontainer %s, in C %s", path, both[0], both[1])
		}
	}
	noUnits(t)
}

// TestScopeWithoutMessageBus: the agent speaks to systemd itself, so a bus that hangs hinders no ordinary container.
func TestScopeWithoutMessageBus(t *testing.T) {
	needScopes(t)
	bus, err := strconv.Atoi(strings.TrimSpace(systemctl(t, "show", "-p", "MainPID", "--value", "dbus.service")))
	if err != nil || bus == 0 {
		t.Skip("no message bus runs: ", err)
	}
	p := newPod(t)
	stop(t, bus)
	defer func() { _ = unix.Kill(bus, unix.SIGCONT) }()
	c := p.container(p.spec("c", "/bin/sh", "-c", "exit 3"))
	if c.Plain == nil {
		t.Fatal("it is not ordinary")
	}
	c.Left = func(why string) { t.Errorf("left to libcontainer: %s", why) }
	p.threeOf(t, c)
	noUnits(t)
}
