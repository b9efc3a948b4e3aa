package keeper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

// An attack is an image, a volume or a specification that would have a runtime mount, write or go somewhere else.
type attack struct {
	name  string
	image func(t *testing.T, root, host string)
	spec  func(s *specs.Spec, host string)
}

func link(path, to string) func(*testing.T, string, string) {
	return func(t *testing.T, root, host string) {
		t.Helper()
		at := filepath.Join(root, path)
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(strings.ReplaceAll(to, "HOST", host), at); err != nil {
			t.Fatal(err)
		}
	}
}

func fifo(path string) func(*testing.T, string, string) {
	return func(t *testing.T, root, _ string) {
		t.Helper()
		at := filepath.Join(root, path)
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(at, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func volumeAt(target string) func(*specs.Spec, string) {
	return func(s *specs.Spec, host string) {
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: target, Type: "bind", Source: filepath.Join(host, "volume"), Options: []string{"rbind", "rprivate", "rw"},
		})
	}
}

func cwd(path string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Process.Cwd = path }
}

func masked(paths ...string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Linux.MaskedPaths = paths }
}

func readonly(paths ...string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) { s.Linux.ReadonlyPaths = paths }
}

// groupsAnd shows a container its groups, where something is done to them.
func groupsAnd(mode string, change func(*specs.Spec, string)) func(*specs.Spec, string) {
	return func(s *specs.Spec, host string) {
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", mode},
		})
		if onV2() {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
		}
		change(s, host)
	}
}

var attacks = []attack{
	{name: "proc is the root", image: link("proc", "/")},
	{name: "proc is above", image: link("proc", "../../../..")},
	{name: "proc is a directory of the host", image: link("proc", "HOST")},
	{name: "proc is a FIFO", image: fifo("proc")},
	{name: "proc leads to tmp", image: link("proc", "tmp")},
	{name: "dev is above", image: link("dev", "../../../../dev")},
	{name: "dev is another directory", image: link("dev", "tmp")},
	{name: "dev is proc", image: link("dev", "proc")},
	{name: "dev is a FIFO", image: fifo("dev")},
	{name: "sys is the host's", image: link("sys", "/proc/1/root/sys")},
	{name: "sys is proc", image: link("sys", "/proc")},
	{name: "volume at a link out", image: link("vol", "../../../../../../HOST/target"), spec: volumeAt("/vol")},
	{name: "volume at a link to the host", image: link("vol", "HOST/target"), spec: volumeAt("/vol")},
	{name: "volume below a link to the host", image: link("vol", "HOST"), spec: volumeAt("/vol/target")},
	{name: "volume at a link to the root", image: link("vol", "/"), spec: volumeAt("/vol")},
	{name: "volume below a link to the root", image: link("vol", "/"), spec: volumeAt("/vol/new")},
	{name: "volume at a link to proc", image: link("vol", "/proc/sys"), spec: volumeAt("/vol")},
	{name: "volume below a link to proc", image: link("vol", "/proc/self/attr"), spec: volumeAt("/vol/exec")},
	{name: "volume at a link to a magic link", image: link("vol", "/proc/self/root"), spec: volumeAt("/vol/HOST")},
	{name: "volume at a link to a descriptor", image: link("vol", "/proc/self/fd/3"), spec: volumeAt("/vol")},
	{name: "volume at a link to devices", image: link("vol", "/dev/pts"), spec: volumeAt("/vol")},
	{name: "volume at a link to the null device", image: link("vol", "/dev/null"), spec: volumeAt("/vol")},
	{name: "volume at a loop", image: link("vol", "vol"), spec: volumeAt("/vol")},
	{name: "volume at a dangling link", image: link("vol", "nowhere/at/all"), spec: volumeAt("/vol")},
	{name: "volume at a FIFO", image: fifo("tmp/fifo"), spec: volumeAt("/tmp/fifo")},
	{name: "directory is a file", spec: volumeAt("/etc/passwd/below")},
	{name: "cwd is a descriptor", spec: cwd("/proc/self/fd/3")},
	{name: "cwd is another descriptor", spec: cwd("/proc/self/fd/7/..")},
	{name: "cwd is a link to a descriptor", image: link("work", "/proc/self/fd/3"), spec: cwd("/work")},
	{name: "cwd below a link to a descriptor", image: link("work", "/proc/self/fd/4"), spec: cwd("/work/new")},
	{name: "cwd is a link to the host", image: link("work", "HOST"), spec: cwd("/work")},
	{name: "cwd is a file", spec: cwd("/etc/passwd")},
	{name: "cwd is a dangling link", image: link("work", "nowhere"), spec: cwd("/work")},
	{name: "masked path is a link to the host", image: link("secret", "HOST/target"), spec: masked("/secret")},
	{name: "masked path is a magic link", image: link("secret", "/proc/self/exe"), spec: masked("/secret", "/proc/self/root", "/proc/self/cwd")},
	{name: "masked path is a descriptor", image: link("secret", "/proc/self/fd/5"), spec: masked("/secret")},
	{name: "masked path is proc", image: link("secret", "/proc/sys/kernel"), spec: masked("/secret")},
	{name: "masked path is a loop", image: link("secret", "secret"), spec: masked("/secret")},
	{name: "read-only path is a link to the host", image: link("kept", "HOST"), spec: readonly("/kept")},
	{name: "read-only path is a magic link", spec: readonly("/proc/self/cwd")},
	{name: "read-only path is a descriptor", image: link("kept", "/proc/self/fd/3"), spec: readonly("/kept")},
	{name: "volume at a link to its groups", image: link("vol", "/sys/fs/cgroup"), spec: groupsAnd("rw", volumeAt("/vol"))},
	{name: "volume below a link to its groups", image: link("vol", "/sys/fs/cgroup"), spec: groupsAnd("rw", volumeAt("/vol/new"))},
	{name: "cwd is a new group", image: link("work", "/sys/fs/cgroup"), spec: groupsAnd("rw", cwd("/work/new"))},
	{name: "cwd is a new group that cannot be", image: link("work", "/sys/fs/cgroup"), spec: groupsAnd("ro", cwd("/work/new"))},
	{name: "masked path is its groups", image: link("secret", "/sys/fs/cgroup"), spec: groupsAnd("rw", masked("/secret"))},
	{name: "read-only path is its groups", image: link("kept", "/sys/fs/cgroup"), spec: groupsAnd("rw", readonly("/kept"))},
	{name: "passwd is a setting of a group", image: link("etc/passwd", "/sys/fs/cgroup/cgroup.procs"), spec: groupsAnd("ro", user(1000, 0))},
	{name: "passwd is a FIFO", image: fifo("etc/passwd")},
	{name: "passwd is a device", image: link("etc/passwd", "/dev/zero")},
	{name: "passwd is a descriptor", image: link("etc/passwd", "/proc/self/fd/3")},
	{name: "program is a link to the host", image: link("bin/reveal", "HOST/program")},
	{name: "program is itself", image: link("bin/reveal", "/proc/self/exe")},
	{name: "program is a FIFO", image: fifo("bin/reveal")},
	{name: "program is a directory", image: link("bin/reveal", "/tmp")},
}

// TestPlainUnderAttack has hostile images started both ways: what comes of it is the same, and the host sees nothing.
func TestPlainUnderAttack(t *testing.T) {
	p := newPod(t)
	p.install("reveal")
	host := filepath.Join(p.dir, "host")
	for _, d := range []string{"target", "volume"} {
		if err := os.MkdirAll(filepath.Join(host, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(host, "marker"), "of the host", 0o644)
	write(t, filepath.Join(host, "program"), "#!/bin/sh\n", 0o755)
	for i, a := range slices.Concat(attacks, groupAttacks) {
		t.Run(a.name, func(t *testing.T) {
			before := p.hostMounts()
			want := p.attacked(t, i, a, host, true)
			got := p.attacked(t, i, a, host, false)
			missing, more := differ(want, got)
			if len(missing)+len(more) > 0 {
				t.Errorf("by libcontainer only:\n%s\nin C only:\n%s", strings.Join(missing, "\n"), strings.Join(more, "\n"))
			}
			if after := p.hostMounts(); after != before {
				t.Errorf("the host had the mounts\n%s\nand has\n%s", before, after)
			}
			if names, err := os.ReadDir(filepath.Join(host, "target")); err != nil || len(names) > 0 {
				t.Errorf("the host's directory has %v, %v", names, err)
			}
		})
	}
}

// attacked starts a container of a hostile image, and says what comes of it.
func (p *pod) attacked(t *testing.T, i int, a attack, host string, old bool) []string {
	t.Helper()
	root := filepath.Join(p.dir, fmt.Sprintf("attack%d%t", i, old))
	makeRoot(t, root, filepath.Join(p.rootfs, "bin/reveal"))
	defer os.RemoveAll(root)
	if a.image != nil {
		a.image(t, root, host)
	}
	s := p.spec("c", "/bin/reveal", "/", "/vol", "/work", "/secret", "/kept", "/tmp", host)
	s.Root.Path = root
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "rw"}})
	if a.spec != nil {
		a.spec(s, host)
	}
	p.old = old
	c := p.container(s)
	c.Left = func(why string) { t.Log("left to libcontainer: ", why) }
	_, err := p.Run(t.Context(), c)
	if err != nil {
		removeGroup(c.ID)
		return []string{strings.NewReplacer(root, "ROOT", c.ID, "ID").Replace(err.Error())}
	}
	d := &dice{t: t, p: p}
	exit := p.exit(c.ID)
	var out []string
	if exit.Code == 0 {
		out = normal(p, d.wholeLog(c), c.ID, root)
	}
	out = append(append(out, settings(c.ID)...), subgroups(c.ID)...)
	removeGroup(c.ID)
	return append(out, fmt.Sprintf("exit %d", exit.Code))
}

// hostMounts are the mounts of the host that are in the pod's directories, or show them.
func (p *pod) hostMounts() string {
	p.t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		p.t.Fatal(err)
	}
	var own []string
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, p.dir) {
			own = append(own, l)
		}
	}
	return strings.Join(own, "")
}

// TestPlainWhileLinksAreSwapped: a volume in which somebody swaps a directory for a link while others are mounted
// there.
func TestPlainWhileLinksAreSwapped(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.NoSpare = true })
	p.install("reveal")
	host, volume := filepath.Join(p.dir, "host"), filepath.Join(p.dir, "volume")
	for _, d := range []string{host + "/b", volume + "/a/b", filepath.Join(p.dir, "inner")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(host, "marker"), "of the host", 0o644)
	write(t, filepath.Join(p.dir, "inner/here"), "", 0o644)
	up := strings.Repeat("../", 20)
	if err := os.Symlink(up+host, filepath.Join(volume, "link")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, volume+"/a", unix.AT_FDCWD, volume+"/link", unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(done); <-ended }()
	before := p.hostMounts()
	started, left := 0, 0
	for i := range 200 {
		root := filepath.Join(p.dir, fmt.Sprintf("swap%d", i))
		makeRoot(t, root, filepath.Join(p.rootfs, "bin/reveal"))
		s := p.spec("c", "/bin/reveal", "/marker", "/vol/marker", "/vol/a/marker", "/vol/link/marker", "/secret/marker", host+"/marker")
		s.Root.Path = root
		volumeOf := func(at, from string) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: "bind", Source: from, Options: []string{"rbind", "rprivate", "rw"}})
		}
		volumeOf("/vol", volume)
		volumeOf("/vol/a/b", filepath.Join(p.dir, "inner"))
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = []string{"/vol/link"}, []string{"/vol/a"}
		s.Process.Cwd = "/vol/a"
		c := p.container(s)
		c.Left = func(string) { left++ }
		if _, err := p.Run(t.Context(), c); err == nil {
			started++
			p.exit(c.ID)
			for _, l := range (&dice{t: t, p: p}).wholeLog(c) {
				if strings.Contains(l, "marker: read: something") {
					t.Fatalf("the container sees a file of the host: %s", l)
				}
			}
		}
		removeGroup(c.ID)
		_ = os.RemoveAll(root)
	}
	t.Logf("%d were started, %d by libcontainer", started, left)
	if after := p.hostMounts(); after != before {
		t.Errorf("the host had the mounts\n%s\nand has\n%s", before, after)
	}
	if names, err := os.ReadDir(filepath.Join(host, "b")); err != nil || len(names) > 0 {
		t.Errorf("the host's directory has %v, %v", names, err)
	}
}

// TestPlainKilledOnTheWay kills who starts a container, at any moment. Nothing of it is left.
func TestPlainKilledOnTheWay(t *testing.T) {
	p := newPod(t, func(c *keeper.Config) { c.NoSpare = true })
	before := p.hostMounts()
	r := rand.New(rand.NewPCG(7, 7))
	killed := 0
	for range 100 {
		c := p.container(p.spec("c", "/bin/sleep", "1000"))
		if c.Plain == nil {
			t.Skip("nothing is ordinary on this machine")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		result := make(chan error, 1)
		go func() {
			_, err := p.Run(ctx, c)
			result <- err
		}()
		time.Sleep(time.Duration(r.IntN(6000)) * time.Microsecond) // somewhere on its way
		whole := r.IntN(2) == 0
		for _, pid := range childrenOf(p.Pid()) {
			if whole {
				_ = p.Signal(ctx, c.ID, unix.SIGKILL)
				break
			}
			_ = unix.Kill(pid, unix.SIGKILL) // the starter, or the container
		}
		if err := <-result; err != nil {
			killed++
		} else {
			_ = p.Signal(ctx, c.ID, unix.SIGKILL)
			p.exit(c.ID)
		}
		cancel()
		if b, err := os.ReadFile(procsOf(c.ID)); err == nil && len(b) > 0 {
			waitEmpty(t, procsOf(c.ID))
		}
	}
	for deadline := time.Now().Add(time.Minute); len(childrenOf(p.Pid())) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the keeper has children: %v", childrenOf(p.Pid()))
		}
	}
	t.Logf("%d of 100 were killed before they were started", killed)
	noUnits(t)
	if after := p.hostMounts(); after != before {
		t.Errorf("the host had the mounts\n%s\nand has\n%s", before, after)
	}
}

func childrenOf(pid int) (pids []int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for f := range strings.FieldsSeq(string(b)) {
		n := 0
		if _, err := fmt.Sscan(f, &n); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

func waitEmpty(t *testing.T, file string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(file); err != nil || len(b) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes are left in %s", file)
		}
	}
}
