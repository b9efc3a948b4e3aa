package keeper_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
	"github.com/berth-node/berth/cri/keeper"
	"github.com/berth-node/berth/cri/plain"
)

// scoped says whether the groups of containers are scopes of systemd here, as $BERTH_CGROUP_DRIVER has it.
func scoped() bool { return os.Getenv("BERTH_CGROUP_DRIVER") == cgroups.DriverSystemd }

// units is the driver that makes them.
var units = sync.OnceValues(func() (*systemd.Driver, error) {
	h, err := cgroups.Open("")
	if err != nil {
		return nil, err
	}
	return systemd.Open(h)
})

// closing runs tests, and ends what makes scopes.
type closing struct{ *testing.M }

func (m closing) Run() int {
	code := m.M.Run()
	if scoped() {
		if d, err := units(); err == nil {
			_ = d.Close()
		}
	}
	return code
}

// withScopes is a machine whose groups are scopes. Whoever holds the last of a pod is its holder.
func (p *pod) withScopes(m plain.Machine) (plain.Machine, error) {
	d, err := units()
	if err != nil {
		return m, err
	}
	return m.WithScopes(plain.Scopes{Systemd: d, Hold: func() (plain.Holder, error) {
		h, err := keeper.NewHolder(p.config.Helper)
		if err == nil {
			p.holder = h.Pid()
		}
		return h, err
	}}), nil
}

func testSlice() string { return fmt.Sprintf("berthtest%d.slice", os.Getpid()) }

func unitOf(id string) string { return "t-" + id + ".scope" }

// groupOf is the path of a container's group, and groupsPath what its specification has for that.
func groupOf(id string) string {
	if scoped() {
		return "/" + testSlice() + "/" + unitOf(id)
	}
	return cgroupRoot() + "/" + id
}

func groupsPath(id string) string {
	if scoped() {
		return testSlice() + ":t:" + id
	}
	return groupOf(id)
}

// Run lets go of the container's scope, as the agent does.
func (p *pod) Run(ctx context.Context, c keeper.Container) (int, error) {
	pid, err := p.Keeper.Run(ctx, c)
	c.Plain.Release()
	return pid, err
}

func removeScopes(t testing.TB) {
	d, err := units()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.Remove(ctx, "/"+testSlice()); err != nil {
		t.Error(err)
	}
}

func systemctl(t testing.TB, args ...string) string {
	t.Helper()
	b, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %v: %v: %s", args, err, b)
	}
	return string(b)
}

// momentary are properties of a unit that no one sets, and the files in which its settings are.
var momentary = regexp.MustCompile(`^(Names|Id|.*Timestamp.*|InvocationID|ControlGroup|ControlGroupId|.*Current|.*Peak|CPUUsageNSec|` +
	`IO(Read|Write)(Bytes|Operations)|IP.*|MemoryAvailable|EffectiveMemory.*|DropInPaths|FragmentPath|NeedDaemonReload|.*Available|NFailed.*|Effective.*)=`)

// shownUnit is what systemd knows of a container's scope.
func shownUnit(t testing.TB, id string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(systemctl(t, "show", "--all", unitOf(id))) {
		if line = strings.TrimSpace(line); !momentary.MatchString(line) {
			out = append(out, "unit: "+strings.ReplaceAll(line, id, "ID"))
		}
	}
	slices.Sort(out)
	return out
}

// noUnits fails when systemd has anything left of containers.
func noUnits(t testing.TB) {
	t.Helper()
	if !scoped() {
		return
	}
	left := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		left = systemctl(t, "list-units", "--all", "--plain", "--no-legend", "t-*.scope")
		if left == "" {
			return
		}
	}
	t.Errorf("systemd still has %s", left)
}

func needScopes(t testing.TB) {
	t.Helper()
	if !scoped() {
		t.Skip("needs systemd, and BERTH_CGROUP_DRIVER=systemd")
	}
}

// TestScopeWithoutItsHolder: nobody but the agent ends who holds a scope, but if somebody does, libcontainer makes
// another.
func TestScopeWithoutItsHolder(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	for i := range 12 {
		c := p.container(p.spec("c", "/bin/sh", "-c", "exit 3"))
		if c.Plain == nil {
			t.Fatal("it is not ordinary")
		}
		left := false
		c.Left = func(string) { left = true }
		kill := func() { _ = unix.Kill(p.holder, unix.SIGKILL) }
		switch {
		case i%3 == 0:
			kill()
			waitEmpty(t, procsOf(c.ID))
		case i%3 == 1:
			kill()
		default:
			time.AfterFunc(time.Duration(i)*2*time.Millisecond, kill)
		}
		if _, err := p.Run(t.Context(), c); err != nil {
			t.Errorf("start %d: %v", i, err)
			continue
		}
		if e := p.exit(c.ID); e.Code != 3 {
			t.Errorf("start %d: exit code is %d", i, e.Code)
		}
		t.Logf("start %d is left to libcontainer: %t", i, left)
	}
	noUnits(t)
}

// TestScopeKeepsItsGuard: what devices a container may use is the same by libcontainer and in C, also when systemd has
// read all its units again, or begun anew.
func TestScopeKeepsItsGuard(t *testing.T) {
	needScopes(t)
	p := newPod(t)
	var both [2][]string
	for k, old := range []bool{true, false} {
		p.old = old
		s := p.spec("c", "/bin/sleep", "1000")
		caps := append(s.Process.Capabilities.Bounding, "CAP_MKNOD")
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		c := p.container(s)
		if !old && c.Plain == nil {
			t.Fatal("it is not ordinary")
		}
		c.Left = func(why string) { t.Errorf("left to libcontainer: %s", why) }
		pid, err := p.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		join := func(e *keeper.Exec) {
			e.CgroupProcs, e.Process.Capabilities = []string{procsOf(c.ID)}, s.Process.Capabilities
		}
		for _, how := range []string{"", "daemon-reload", "daemon-reexec"} {
			if how != "" {
				systemctl(t, how)
			}
			var try strings.Builder
			for _, n := range nodes {
				kind := "c"
				if n.kind == unix.S_IFBLK {
					kind = "b"
				}
				fmt.Fprintf(&try, "rm -f /tmp/n; busybox mknod /tmp/n %s %d %d && (: </tmp/n) 2>&1; echo %s $?;", kind, n.major, n.minor, n.name)
			}
			out, exit, err := p.execIn(c.ID, pid, join, "/bin/sh", "-c", try.String())
			both[k] = append(both[k], fmt.Sprintf("%s: %q %d %v", how, out, exit.Code, err))
			both[k] = append(both[k], how+": "+guards(groupsOf(c.ID)[0]))
			for _, l := range append(settings(c.ID), shownUnit(t, c.ID)...) {
				both[k] = append(both[k], how+": "+strings.ReplaceAll(l, c.ID, "ID"))
			}
		}
		if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.exit(c.ID)
	}
	t.Log(strings.Join(both[1], "\n"))
	missing, more := differ(both[0], both[1])
	if len(missing)+len(more) > 0 {
		t.Errorf("by libcontainer only:\n%s\nin C only:\n%s", strings.Join(missing, "\n"), strings.Join(more, "\n"))
	}
	noUnits(t)
}
