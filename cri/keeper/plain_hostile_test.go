package keeper_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/keeper"
)

func asItIs(*specs.Spec, string) {}

// hostsAt mounts a directory of the host.
func hostsAt(target, source, option string) func(*specs.Spec, string) {
	return func(s *specs.Spec, _ string) {
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: target, Type: "bind", Source: source, Options: []string{"rbind", "rprivate", option},
		})
	}
}

func needV2(t *testing.T) {
	t.Helper()
	if !onV2() {
		t.Skip("needs a machine with cgroup v2 alone")
	}
}

// groupAttacks are on what a container has of its groups, and on how they are made.
var groupAttacks = []attack{
	{name: "nothing", spec: groupsAnd("ro", asItIs)},
	{name: "volume that cannot be", image: link("vol", "/sys/fs/cgroup"), spec: groupsAnd("ro", volumeAt("/vol/new"))},
	{name: "volume at a link above groups", image: link("vol", "/sys/fs"), spec: groupsAnd("rw", volumeAt("/vol"))},
	{name: "volume before what it leads to", image: link("vol", "/sys/fs/cgroup"), spec: func(s *specs.Spec, host string) {
		groupsAnd("rw", volumeAt("/vol"))(s, host)
		last := len(s.Mounts) - 1
		s.Mounts = slices.Insert(s.Mounts[:last:last], 0, s.Mounts[last])
	}},
	{name: "working directory is a new group", spec: groupsAnd("rw", cwd("/sys/fs/cgroup/new"))},
	{name: "working directory is a new group to be read", spec: groupsAnd("ro", cwd("/sys/fs/cgroup/new"))},
	{name: "groups are masked", spec: groupsAnd("ro", masked("/sys/fs/cgroup"))},
	{name: "a file of the group is masked", spec: groupsAnd("rw", masked("/sys/fs/cgroup/cgroup.procs"))},
	{name: "above groups is masked", spec: groupsAnd("ro", masked("/sys/fs"))},
	{name: "groups are read-only paths", spec: groupsAnd("rw", readonly("/sys/fs/cgroup"))},
	{name: "above groups is a read-only path", spec: groupsAnd("rw", readonly("/sys/fs"))},
	{name: "sys is a link", image: link("sys", "tmp"), spec: groupsAnd("ro", asItIs)},
	{name: "sys is a FIFO", image: fifo("sys"), spec: groupsAnd("ro", asItIs)},
	{name: "sys is not there", image: func(t *testing.T, root, _ string) {
		t.Helper()
		if err := os.Remove(filepath.Join(root, "sys")); err != nil {
			t.Fatal(err)
		}
	}, spec: groupsAnd("ro", asItIs)},
	{name: "groups lie in the image", image: link("sys/fs/cgroup", "HOST/target"), spec: groupsAnd("rw", asItIs)},
	{name: "passwd is a group's", image: link("etc/passwd", "/sys/fs/cgroup/memory.stat"), spec: groupsAnd("ro", asItIs)},
	{name: "program is a group file", image: link("bin/reveal", "/sys/fs/cgroup/cpu.stat"), spec: groupsAnd("ro", asItIs)},
	{name: "left to libcontainer", image: link("dev", "tmp"), spec: groupsAnd("ro", asItIs)},
	{name: "left with limits", image: link("dev", "tmp"), spec: groupsAnd("rw", func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{
			Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}, Memory: &specs.LinuxMemory{Limit: new(int64(256 << 20))},
			Unified: map[string]string{"memory.oom.group": "1", "cpu.weight": "79", "pids.max": "100"},
		}
	})},
	{name: "volume of the host's groups", spec: groupsAnd("ro", hostsAt("/vol", "/sys/fs/cgroup", "ro"))},
	{name: "volume of the host's sysfs", spec: groupsAnd("ro", hostsAt("/vol", "/sys", "ro"))},
	{name: "volume of a group's file", spec: groupsAnd("ro", hostsAt("/vol/procs", "/sys/fs/cgroup/cgroup.procs", "rw"))},
	{name: "namespace without the mount", spec: func(s *specs.Spec, _ string) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}},
	{name: "two limits of processes", spec: groupsAnd("ro", func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{
			Pids: &specs.LinuxPids{Limit: new(int64(100))}, Unified: map[string]string{"pids.max": "200"},
		}
	})},
	{name: "no such file", spec: groupsAnd("ro", func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{Unified: map[string]string{"memory.no-such": "1"}}
	})},
	{name: "no such value", spec: groupsAnd("ro", func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{Unified: map[string]string{"cpu.max": "much"}}
	})},
	{name: "no such processor", spec: groupsAnd("ro", func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{CPU: &specs.LinuxCPU{Cpus: "500"}}
	})},
	{name: "less memory and swap than memory", spec: groupsAnd("ro", func(s *specs.Spec, _ string) {
		s.Linux.Resources = &specs.LinuxResources{
			Memory: &specs.LinuxMemory{Limit: new(int64(64 << 20)), Swap: new(int64(32 << 20))},
		}
	})},
}

// subgroups are a container's group and those that it has made below.
func subgroups(id string) (out []string) {
	for _, dir := range groupsOf(id) {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, "group "+strings.ReplaceAll(path, id, "ID"))
			}
			return nil
		})
	}
	return out
}

// hostileShell makes groups of its own, leaves the one that it was given, and bounds what can be made.
const hostileShell = `
try() { "$@" 2>/dev/null && echo "can $*" || echo "cannot $*"; }
put() { { echo "$1" > "$2"; } 2>/dev/null && echo "can put $1 to $2" || echo "cannot put $1 to $2"; }
cat /proc/self/cgroup
mkdir -p /tmp/cg
try mount -t cgroup2 none /tmp/cg
cd /tmp/cg
try mkdir child
THREADS
for f in memory.max memory.high memory.oom.group pids.max cpu.max cpu.weight cgroup.freeze cgroup.max.descendants; do
	put max $f
done
put $$ child/cgroup.procs
put +memory cgroup.subtree_control
put +pids cgroup.subtree_control
put 2 cgroup.max.descendants
put 0 cgroup.max.depth
try mkdir more
cat /proc/self/cgroup
cat cgroup.subtree_control
echo ready
exec sleep 1000
`

// TestPlainLeavesItsGroup: a container may do with groups below its own as it likes, and is entered and ended as if
// libcontainer had started it.
func TestPlainLeavesItsGroup(t *testing.T) {
	needV2(t)
	p := newPod(t)
	for _, threads := range []string{"", "try mkdir threads; put threaded threads/cgroup.type"} {
		p.leavesItsGroup(t, strings.Replace(hostileShell, "THREADS", threads, 1))
	}
}

func (p *pod) leavesItsGroup(t *testing.T, script string) {
	t.Helper()
	var both [2][]string
	for k, old := range []bool{true, false} {
		p.old = old
		s := p.spec("c", "/bin/sh", "-c", script)
		groupsAnd("ro", asItIs)(s, "")
		s.Mounts = slices.Insert(s.Mounts, len(s.Mounts)-1, specs.Mount{
			Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "rw"},
		})
		caps := append(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
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
		both[k] = awaitLine(t, p, c.ID, "ready")
		join := func(e *keeper.Exec) { e.CgroupProcs = []string{procsOf(c.ID)} }
		for range 2 {
			out, exit, err := p.execIn(c.ID, pid, join, "/bin/sh", "-c", "cat /proc/self/cgroup")
			both[k] = append(both[k], fmt.Sprintf("exec: %q %d %v", out, exit.Code, err))
		}
		both[k] = append(both[k], settings(c.ID)...)
		both[k] = append(both[k], subgroups(c.ID)...)
		// Who is frozen ends, too.
		write(t, filepath.Join(groupsOf(c.ID)[0], "child/cgroup.freeze"), "1", 0o644)
		if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		both[k] = append(both[k], fmt.Sprintf("exit %d", p.exit(c.ID).Code))
		for i, l := range both[k] {
			both[k][i] = strings.ReplaceAll(l, c.ID, "ID")
		}
	}
	t.Log(strings.Join(both[1], "\n"))
	missing, more := differ(both[0], both[1])
	if len(missing)+len(more) > 0 {
		t.Errorf("by libcontainer only:\n%s\nin C only:\n%s", strings.Join(missing, "\n"), strings.Join(more, "\n"))
	}
}

// awaitLine is what a container writes until it writes a line.
func awaitLine(t *testing.T, p *pod, id, line string) []string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		var out []string
		for _, l := range p.log(id) {
			_, text, _ := strings.Cut(strings.TrimSuffix(l, "\n"), " F ")
			out = append(out, text)
		}
		if slices.Contains(out, line) {
			return out
		}
		if time.Now().After(deadline) {
			t.Fatalf("it writes %q", out)
		}
	}
}

// TestPlainWithLittleMemory: of a group in which nobody can be born for want of memory, it is told as by libcontainer.
func TestPlainWithLittleMemory(t *testing.T) {
	needV2(t)
	p := newPod(t)
	for _, limit := range []int64{1, 64 << 10, 256 << 10, 1 << 20, 16 << 20} {
		for _, whole := range []string{"0", "1"} {
			want, failed := p.withMemory(limit, whole, true)
			got, alsoFailed := p.withMemory(limit, whole, false)
			t.Logf("%d bytes, memory.oom.group %s: libcontainer says %q, and C %q", limit, whole, want, got)
			// C takes less of it, so it starts some that libcontainer cannot.
			if got != want && (!failed || alsoFailed) {
				t.Errorf("%d bytes, memory.oom.group %s: libcontainer says %q, and C %q", limit, whole, want, got)
			}
		}
	}
}

// withMemory says what comes of a container with so much memory.
func (p *pod) withMemory(limit int64, whole string, old bool) (said string, failed bool) {
	p.t.Helper()
	p.old = old
	s := p.spec("c", "/bin/sh", "-c", "exit 3")
	s.Linux.Resources = &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit}, Unified: map[string]string{"memory.oom.group": whole},
	}
	c := p.container(s)
	defer removeGroup(c.ID)
	c.MemoryCgroup = groupsOf(c.ID)[0]
	switch _, err := p.Run(p.t.Context(), c); {
	case err != nil && scoped():
		return "it fails where the scope has ended", true // which is anywhere
	case err != nil:
		return strings.ReplaceAll(err.Error(), c.ID, "ID"), true
	}
	e := p.exit(c.ID)
	return fmt.Sprintf("exit %d, for want of memory: %t", e.Code, e.OOMKilled), false
}

// addGuards adds the programs that guard the devices of a container's group.
func addGuards(to map[uint32]bool, id string) {
	if !onV2() {
		return
	}
	group, err := os.Open(groupsOf(id)[0])
	if err != nil {
		return
	}
	defer group.Close()
	var ids [64]uint32
	attr := struct {
		group, kind, query, flags uint32
		ids                       *[64]uint32
		count, _                  uint32
		_                         [4]uint64
	}{group: uint32(group.Fd()), kind: unix.BPF_CGROUP_DEVICE, ids: &ids, count: uint32(len(ids))}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno == 0 {
		for _, id := range ids[:attr.count] {
			to[id] = true
		}
	}
}

// loaded are those programs that the kernel has yet.
func loaded(programs map[uint32]bool) (out []uint32) {
	for id := range programs {
		attr := struct{ id, next, flags uint32 }{id: id}
		at, size := uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_GET_FD_BY_ID, at, size)
		if errno == 0 {
			unix.Close(int(fd))
			out = append(out, id)
		}
	}
	return out
}

// TestPlainLeavesNoGuards: the programs that guard devices go with the groups, however a start ends, but the one that
// the agent keeps.
func TestPlainLeavesNoGuards(t *testing.T) {
	needV2(t)
	p := newPod(t)
	seen := map[uint32]bool{}
	for i := range 12 {
		if err := os.RemoveAll(filepath.Join(p.rootfs, "dev")); err != nil {
			t.Fatal(err)
		}
		if i%3 == 1 {
			if err := os.Symlink("tmp", filepath.Join(p.rootfs, "dev")); err != nil {
				t.Fatal(err)
			}
		}
		program := "/bin/sleep"
		if i%3 == 2 {
			program = "/no-such"
		}
		c := p.container(p.spec("c", program, "1000"))
		_, err := p.Run(t.Context(), c)
		if g := guards(groupsOf(c.ID)[0]); !strings.HasPrefix(g, "1 with") && i%3 != 2 {
			t.Errorf("start %d: guards of devices: %s", i, g)
		}
		addGuards(seen, c.ID)
		if err == nil {
			if err := p.Signal(t.Context(), c.ID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			p.exit(c.ID)
		}
		removeGroup(c.ID)
	}
	noUnits(t)
	if len(seen) < 2 {
		t.Errorf("there were the programs %v", seen)
	}
	awaitNoGuards(t, seen)
}

// awaitNoGuards waits until of programs that were there none is left but the one that the agent keeps. The kernel frees
// a group, and with it what is attached, some time after its directory is gone.
func awaitNoGuards(t *testing.T, seen map[uint32]bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); len(loaded(seen)) > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("of the programs %v are left %v", seen, loaded(seen))
		}
	}
}
