package check

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/config"
)

// proc is a /proc with processes of a test's making.
type proc struct {
	t   *testing.T
	dir string
}

func newProc(t *testing.T) proc {
	t.Helper()
	p := proc{t, t.TempDir()}
	p.write("net/tcp", "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n")
	return p
}

func (p proc) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		p.t.Fatal(err)
	}
}

// run adds a process with its program and what its descriptors lead to.
func (p proc) run(pid int, exe string, fds ...string) {
	p.t.Helper()
	dir := filepath.Join(p.dir, strconv.Itoa(pid))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	links := map[string]string{"exe": exe}
	for i, to := range fds {
		links[fmt.Sprintf("fd/%d", i+3)] = to
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			p.t.Fatal(err)
		}
	}
	p.write(fmt.Sprintf("%d/cmdline", pid), "x\x00--token=secret\x00")
}

// listen has a socket listen on a port, by the table of TCP.
func (p proc) listen(port, inode int) {
	p.t.Helper()
	p.write("net/tcp", fmt.Sprintf("   0: 00000000:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 %d 1 0 100 0 0 10 0\n", port, inode))
}

func TestKubeletProbe(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(p proc)
		pods  string
		want  Status
		found string
	}{
		"none":      {func(p proc) { p.run(10, "/usr/bin/kubectl") }, "", OK, "none"},
		"runs":      {func(p proc) { p.run(10, "/usr/bin/kubelet") }, "", Limited, `process 10 ("/usr/bin/kubelet")`},
		"replaced":  {func(p proc) { p.run(10, "/usr/local/bin/k3s (deleted)") }, "", Limited, `process 10 ("/usr/local/bin/k3s")`},
		"strange":   {func(p proc) { p.run(10, "/\x1b[2J\n/kubelet") }, "", Limited, `process 10 ("/\x1b[2J\n/kubelet")`},
		"port":      {func(p proc) { p.run(11, "/app", "/dev/null", "socket:[77]"); p.listen(10250, 77) }, "", Limited, `port 10250 is taken by process 11 ("/app")`},
		"our port":  {func(p proc) { p.run(11, "/usr/bin/berth", "socket:[77]"); p.listen(10250, 77) }, "", OK, "none"},
		"left pods": {func(proc) {}, "pods/123", Limited, "1 pods of one that did"},
	} {
		t.Run(name, func(t *testing.T) {
			p, kubelet := newProc(t), t.TempDir()
			c.set(p)
			if c.pods != "" {
				if err := os.MkdirAll(filepath.Join(kubelet, c.pods), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			a := probeKubelet(t.Context(), &env{proc: p.dir, kubelet: kubelet})
			if a.status != c.want || !strings.Contains(a.found, c.found) || strings.Contains(a.found, "secret") {
				t.Errorf("%+v", a)
			}
		})
	}
	if a := probeKubelet(t.Context(), &env{proc: "/nowhere"}); a.status != Limited {
		t.Errorf("without /proc: %+v", a)
	}
}

// locked is a run directory that a process has, as an agent has it.
func locked(t *testing.T, pid int) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	fmt.Fprintln(f, pid)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBerthProbe(t *testing.T) {
	p := newProc(t)
	p.run(20, "/usr/bin/berth", "/run/berth/lock")
	p.run(21, "/opt/berth", "/dev/null", "/srv/b/run/lock")
	p.run(22, "/usr/bin/berth") // a command
	free, held := t.TempDir(), locked(t, 20)
	for _, c := range []struct {
		dir      string
		starting bool
		want     Status
		found    []string
	}{
		{free, false, OK, []string{"none runs in " + free, `process 20 in "/run/berth"`, `process 21 in "/srv/b/run"`}},
		{filepath.Join(free, "not", "there"), true, OK, []string{"none runs"}},
		{held, false, OK, []string{"is process 20; beside it", "process 21"}},
		{held, true, Missing, []string{"process 20", "is not the service"}},
	} {
		e := &env{proc: p.dir, starting: c.starting}
		e.agent.RunDir = c.dir
		a := probeBerth(t.Context(), e)
		if a.status != c.want {
			t.Errorf("%+v: %+v", c, a)
		}
		for _, want := range c.found {
			if !strings.Contains(a.found, want) {
				t.Errorf("no %q in %q", want, a.found)
			}
		}
	}
	p.write("20/cgroup", "0::/system.slice/berth.slice/berth.service\n")
	e := &env{proc: p.dir, starting: true}
	e.agent.RunDir = held
	if a := probeBerth(t.Context(), e); a.status != OK {
		t.Errorf("the service itself: %+v", a)
	}
	// What was looked at is as free as it was.
	f, err := os.Create(filepath.Join(free, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid, err := holder(free); pid != 0 || err != nil {
		t.Errorf("a lock that nobody has: %d, %v", pid, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the probe has kept the lock: %v", err)
	}
}

func TestPortsProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	p := newProc(t)
	p.run(30, "/usr/sbin/nginx", "socket:[99]")
	e := &env{proc: p.dir, agent: config.Default()}
	e.agent.RunDir = t.TempDir()
	if a := probePorts(t.Context(), e); a.status != OK || !strings.Contains(a.found, "none is wanted") {
		t.Errorf("without ports: %+v", a)
	}
	e.agent.HealthzPort = int32(taken)
	if a := probePorts(t.Context(), e); a.status != Limited || !strings.Contains(a.found, fmt.Sprintf("--healthz-port %d is taken", taken)) {
		t.Errorf("taken by nobody we see: %+v", a)
	}
	p.listen(taken, 99)
	e.starting = true
	if a := probePorts(t.Context(), e); a.status != Missing || !strings.Contains(a.found, `process 30 ("/usr/sbin/nginx")`) {
		t.Errorf("taken: %+v", a)
	}
	e.agent.RunDir = locked(t, 30)
	if a := probePorts(t.Context(), e); a.status != OK {
		t.Errorf("by the agent itself: %+v", a)
	}
	l.Close()
	if a := probePorts(t.Context(), e); a.status != OK || !strings.Contains(a.found, "free: --healthz-port") {
		t.Errorf("free: %+v", a)
	}
	e.agent.HealthzAddress = "203.0.113.1"
	if a := probePorts(t.Context(), e); a.status != Missing || !strings.Contains(a.found, "cannot assign") {
		t.Errorf("an address of others: %+v", a)
	}
}

// TestListenerOfKernel finds this process by a port that it listens on.
func TestListenerOfKernel(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pid, err := (&env{proc: "/proc"}).listener(int32(l.Addr().(*net.TCPAddr).Port))
	if err != nil || pid != os.Getpid() {
		t.Errorf("process %d, %v; this is %d", pid, err, os.Getpid())
	}
}

func TestClockProbe(t *testing.T) {
	now := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		made  time.Time
		unset bool
		err   error
		want  Status
		found string
	}{
		{now.Add(-time.Hour), false, nil, OK, "synchronized, clock source tsc"},
		{now.Add(time.Second), false, nil, Missing, "says 2026-05-01T00:00:00Z, and this program was made at 2026-05-01T00:00:01Z"},
		{now.Add(-time.Hour), true, nil, Limited, "not synchronized"},
		{now.Add(-time.Hour), true, unix.EPERM, Limited, "cannot ask"},
	} {
		if a := clock(now, c.made, "tsc", c.unset, c.err); a.status != c.want || !strings.Contains(a.found, c.found) {
			t.Errorf("%+v: %+v", c, a)
		}
	}
	file := filepath.Join(t.TempDir(), "berth")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	if at := made(file); !at.Equal(later) {
		t.Errorf("a file of %s was made at %s", later, at)
	}
	if at := made("/nowhere"); at.Year() < 2026 {
		t.Errorf("made at %s", at)
	}
}

func TestDiskProbe(t *testing.T) {
	took := func(ms ...int) (out []time.Duration) {
		for _, n := range ms {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	if a := fastEnough(took(1, 900, 2, 2, 1), "ext4"); a.status != OK || !strings.Contains(a.found, "after 2ms (median of 5, at most 900ms)") {
		t.Errorf("fast: %+v", a)
	}
	if a := fastEnough(took(60, 70, 80), "ext4"); a.status != Limited || !strings.Contains(a.found, "on ext4 after 70ms") {
		t.Errorf("slow: %+v", a)
	}
	dir := t.TempDir()
	if a := probeDisk(t.Context(), &env{dir: dir}); !strings.Contains(a.found, "median of 8") {
		t.Errorf("of this machine: %+v", a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := syncTimes(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if a := probeDisk(t.Context(), &env{dir: filepath.Join(dir, "not")}); a.status != Missing {
		t.Errorf("without the directory: %+v", a)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestRemedies: each is of a probe, and what the preflight is to find has one.
func TestRemedies(t *testing.T) {
	do, have := remedies(), map[string]bool{}
	for _, p := range probes(true) {
		have[p.name] = true
	}
	for name := range do {
		if !have[name] {
			t.Errorf("no probe is called %q", name)
		}
	}
	for _, name := range []string{"overlay", "cgroup memory", "nf_tables", "ports", "kubelet", "berth", "clock", "disk"} {
		if do[name] == "" {
			t.Errorf("nothing says what to do about %s", name)
		}
	}
	r := run(t.Context(), []probe{{"disk", false, "It is slow.", answering(limited("x"))}}, &env{})
	var b strings.Builder
	if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "disk (limited): It is slow.\n    to do: "+do["disk"]+"\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
