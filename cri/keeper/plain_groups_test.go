package keeper_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// onV2 says whether the machine has cgroup v2 alone.
func onV2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.procs")
	return err == nil
}

// groupsOf are the directories of a container's group.
func groupsOf(id string) []string {
	if onV2() {
		return []string{"/sys/fs/cgroup" + groupOf(id)}
	}
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroupRoot() + "/" + id)
	return dirs
}

// procsOf tells who is in a container's group.
func procsOf(id string) string {
	dir := "/sys/fs/cgroup/pids"
	if onV2() {
		dir = "/sys/fs/cgroup"
	}
	return dir + groupOf(id) + "/cgroup.procs"
}

func removeGroup(id string) {
	if scoped() {
		if d, err := units(); err == nil {
			_ = d.StopScope(groupOf(id))
		}
	}
	for _, dir := range groupsOf(id) {
		_ = os.Remove(dir)
	}
}

// settings are what can be set of a container's groups, and of v2 the controllers all the way up, which a start
// switches on.
func settings(id string) []string {
	var out []string
	for _, dir := range groupsOf(id) {
		out = append(out, settingsIn(dir, id)...)
		if !onV2() {
			b, _ := os.ReadFile(filepath.Join(dir, "devices.list"))
			lines := strings.Split(string(b), "\n")
			slices.Sort(lines)
			out = append(out, fmt.Sprintf("%s/devices.list: %q", filepath.Dir(dir), lines))
			continue
		}
		out = append(out, "guards of devices: "+guards(dir))
		for up := filepath.Dir(dir); strings.HasPrefix(up, "/sys/fs/cgroup"); up = filepath.Dir(up) {
			b, err := os.ReadFile(filepath.Join(up, "cgroup.subtree_control"))
			out = append(out, fmt.Sprintf("%s: %q %v", up, b, err))
		}
	}
	return out
}

func settingsIn(dir, id string) []string {
	var out []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		out = append(out, err.Error())
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode()&0o200 == 0 || usage.MatchString(e.Name()) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		out = append(out, fmt.Sprintf("%s: %q %v", strings.ReplaceAll(filepath.Join(dir, e.Name()), id, "ID"), b, err != nil))
	}
	return out
}

// usage are files that can be written to and do not tell a setting.
var usage = regexp.MustCompile(`usage|max_usage|failcnt|pressure|stat|peak|memory_pressure|cgroup\.procs|tasks|reclaim|force_empty|event_control|kill|threads`)

// guards tells how many programs the kernel asks about devices for a group of v2, and how they are attached.
func guards(dir string) string {
	group, err := os.Open(dir)
	if err != nil {
		return err.Error()
	}
	defer group.Close()
	attr := struct {
		group, kind, query, flags uint32
		ids                       uint64
		count, _                  uint32
		_                         [4]uint64
	}{group: uint32(group.Fd()), kind: unix.BPF_CGROUP_DEVICE}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	return fmt.Sprintf("%d with %x, %v", attr.count, attr.flags, errno)
}

// nodes are devices in an image: some that all may use, and some that nobody may.
var nodes = []struct {
	name         string
	kind         uint32
	major, minor uint32
}{
	{"zero", unix.S_IFCHR, 1, 5},
	{"tun", unix.S_IFCHR, 10, 200},
	{"memory", unix.S_IFCHR, 1, 1},
	{"log", unix.S_IFCHR, 1, 11},
	{"fuse", unix.S_IFCHR, 10, 229},
	{"random", unix.S_IFCHR, 1, 8},
	{"loop", unix.S_IFBLK, 7, 0},
	{"console", unix.S_IFCHR, 5, 1},
}

// unified are settings of v2 that v1 does not have, or has by other names.
func (d *dice) unified(s *specs.Spec) {
	if slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "cgroup" }) || d.chance(50) {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	if scoped() && slices.ContainsFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "cgroup" && slices.Contains(m.Options, "rw") }) {
		s.Process.User.UID = 0 // else the scope were the user's, and that is not ordinary
	}
	r := s.Linux.Resources
	if r == nil {
		return
	}
	if r.Memory != nil && d.chance(50) {
		r.Memory.Swap = new(pick(d, *r.Memory.Limit, *r.Memory.Limit+(8<<20), -1))
	}
	if r.CPU != nil && r.CPU.Quota != nil && *r.CPU.Quota > 0 && d.chance(30) {
		r.CPU.Burst = new(uint64(10000))
	}
	if r.CPU != nil && d.chance(10) {
		r.CPU.Idle = new(pick(d, int64(0), 1))
		r.CPU.Shares = nil
	}
	if d.chance(20) {
		r.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}}
	}
	for _, f := range some(d, 25, settable()...) {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified[f[0]] = f[1]
	}
	if r.CPU != nil && r.CPU.Shares != nil && d.chance(70) {
		// As a pod has them.
		r.CPU.Shares = nil
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		r.Unified["cpu.weight"] = "79"
	}
}

// settable are those files of v2, and values for them, that the machine has.
var settable = sync.OnceValue(func() (out [][2]string) {
	const root = "/sys/fs/cgroup"
	all, _ := os.ReadFile(root + "/cgroup.controllers")
	for c := range strings.FieldsSeq(string(all)) {
		_ = os.WriteFile(root+"/cgroup.subtree_control", []byte("+"+c), 0o644)
	}
	dir := root + cgroupRoot()
	_ = os.Mkdir(dir, 0o755)
	for _, f := range [][2]string{
		{"memory.high", "200000000"},
		{"memory.low", "1000000"},
		{"memory.min", "4096"},
		{"memory.oom.group", "1"},
		{"pids.max", "77"},
		{"memory.swap.high", "max"},
		{"cpu.max", "30000 100000"},
		{"io.weight", "default 50"},
		{"cpuset.cpus.partition", "member"},
		{"cpu.idle", "0"},
		{"memory.zswap.max", "0"},
	} {
		if _, err := os.Stat(filepath.Join(dir, f[0])); err == nil {
			out = append(out, f)
		}
	}
	return out
})

// TestPlainLeavesTheAgentsLimits: what the agent may lock in memory its keepers have from it, and containers from
// those.
func TestPlainLeavesTheAgentsLimits(t *testing.T) {
	p := newPod(t)
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: min(before.Cur, 1<<20), Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before) }()
	if c := p.container(p.spec("c", "/bin/true")); c.Plain == nil {
		t.Error("it is not ordinary")
	}
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &after); err != nil || after != low {
		t.Errorf("the limit was %v and is %v, %v", low, after, err)
	}
}
