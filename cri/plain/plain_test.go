package plain

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups"
)

func v1() Machine {
	return Machine{Mode: cgroups.Hybrid, Trees: []cgroups.Tree{
		{Mount: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"cpu", "cpuacct"}, Whole: true},
		{Mount: "/sys/fs/cgroup/devices", Controllers: []string{"devices"}, Whole: true},
		{Mount: "/sys/fs/cgroup/systemd", Controllers: []string{"name=systemd"}, Whole: true},
		{Mount: "/sys/fs/cgroup/unified", Unified: true, Whole: true},
	}}
}

func v2() Machine {
	return Machine{Mode: cgroups.Unified, Trees: []cgroups.Tree{
		{Mount: "/sys/fs/cgroup", Controllers: []string{"cpu", "memory", "pids"}, Unified: true, Whole: true},
	}}
}

// unified is what is ordinary on v2.
func unified() *specs.Spec {
	s := ordinary()
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	s.Linux.Resources.Unified = map[string]string{"cpu.weight": "4"}
	s.Linux.Resources.CPU = &specs.LinuxCPU{Idle: new(int64)}
	return s
}

// ordinary is a container as a pod has it.
func ordinary() *specs.Spec {
	caps := []string{"CAP_CHOWN"}
	own := []string{"rbind", "rprivate", "rw"}
	limit := int64(64 << 20)
	return &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: []string{"sh"}, Env: []string{"PATH=/bin"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Root: &specs.Root{Path: "/run/berth/c/rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "rw"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", "ro"}},
			{Destination: "/dev/shm", Type: "bind", Source: "/run/berth/s/shm", Options: []string{"rbind", "rprivate", "nosuid", "noexec", "nodev", "rw"}},
			{Destination: "/etc/hosts", Type: "bind", Source: "/run/berth/s/hosts", Options: own},
			{Destination: "/dev/termination-log", Type: "bind", Source: "/run/berth/t", Options: own},
		},
		Annotations: map[string]string{"io.kubernetes.cri.container-type": "container"},
		Linux: &specs.Linux{
			CgroupsPath: "/kubepods/pod1/c",
			Resources: &specs.LinuxResources{
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
				Memory:  &specs.LinuxMemory{Limit: &limit},
			},
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.MountNamespace},
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace, Path: "/run/netns/p"},
				{Type: specs.IPCNamespace, Path: "/proc/7/ns/ipc"},
				{Type: specs.UTSNamespace, Path: "/proc/7/ns/uts"},
			},
			MaskedPaths: []string{"/proc/kcore", "/proc/kcore", "/sys/firmware"}, ReadonlyPaths: []string{"/sys", "/proc/sys"},
			Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno},
		},
	}
}

func TestOrdinary(t *testing.T) {
	s, err := Of(ordinary(), v1())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Masked, []string{"/proc/kcore", "/sys/firmware"}) || !slices.Equal(s.ReadPaths, []string{"/proc/sys"}) {
		t.Errorf("masked %v, read-only %v", s.Masked, s.ReadPaths)
	}
	sys := s.Mounts[slices.IndexFunc(s.Mounts, func(m Mount) bool { return m.Kind == Sys })]
	if sys.Set&unix.MOUNT_ATTR_RDONLY == 0 {
		t.Errorf("/sys can be written to: %+v", sys)
	}
	if len(s.Join) != 3 || len(s.Procs) != 4 || len(s.Trees) != 3 {
		t.Errorf("joins %v, groups %v, of which %v are shown", s.Join, s.Procs, s.Trees)
	}
	if s.Procs[0] != "/sys/fs/cgroup/cpu,cpuacct/kubepods/pod1/c/cgroup.procs" {
		t.Errorf("joins %v", s.Procs)
	}
}

// TestNotOrdinary changes one thing of what is ordinary.
func TestNotOrdinary(t *testing.T) {
	one, kind := int64(1), "c"
	option := func(i int, o string) func(*specs.Spec) {
		return func(s *specs.Spec) { s.Mounts[i].Options = append(slices.Clone(s.Mounts[i].Options), o) }
	}
	namespace := func(k specs.LinuxNamespaceType, path string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == k })
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: k, Path: path})
		}
	}
	mountAt := func(at string) func(*specs.Spec) {
		return func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: at, Type: "bind", Source: "/srv", Options: []string{"rbind", "rprivate", "rw"}})
		}
	}
	for name, change := range map[string]func(*specs.Spec){
		"hooks":                func(s *specs.Spec) { s.Hooks = &specs.Hooks{} },
		"hostname":             func(s *specs.Spec) { s.Hostname = "h" },
		"domain name":          func(s *specs.Spec) { s.Domainname = "d" },
		"devices":              func(s *specs.Spec) { s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Type: kind}} },
		"device rules":         func(s *specs.Spec) { s.Linux.Resources.Devices[0].Allow = true },
		"rules of a device":    func(s *specs.Spec) { s.Linux.Resources.Devices[0].Major = &one },
		"unified":              func(s *specs.Spec) { s.Linux.Resources.Unified = map[string]string{"memory.high": "1"} },
		"block I/O":            func(s *specs.Spec) { s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{} },
		"swappiness":           func(s *specs.Spec) { s.Linux.Resources.Memory.Swappiness = new(uint64) },
		"realtime":             func(s *specs.Spec) { s.Linux.Resources.CPU = &specs.LinuxCPU{RealtimeRuntime: &one} },
		"RDT":                  func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{} },
		"personality":          func(s *specs.Spec) { s.Linux.Personality = &specs.LinuxPersonality{} },
		"memory policy":        func(s *specs.Spec) { s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{} },
		"network devices":      func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth0": {}} },
		"time offsets":         func(s *specs.Spec) { s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"monotonic": {}} },
		"mount label":          func(s *specs.Spec) { s.Linux.MountLabel = "l" },
		"root that spreads":    func(s *specs.Spec) { s.Linux.RootfsPropagation = "rslave" },
		"sysctls":              func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.shmmax": "1"} },
		"ids":                  func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{}} },
		"scheduler":            func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{} },
		"I/O priority":         func(s *specs.Spec) { s.Process.IOPriority = &specs.LinuxIOPriority{} },
		"processors":           func(s *specs.Spec) { s.Process.ExecCPUAffinity = &specs.CPUAffinity{} },
		"AppArmor":             func(s *specs.Spec) { s.Process.ApparmorProfile = "cri-berth" },
		"SELinux":              func(s *specs.Spec) { s.Process.SelinuxLabel = "l" },
		"user by name":         func(s *specs.Spec) { s.Process.User.Username = "bob" },
		"command line":         func(s *specs.Spec) { s.Process.CommandLine = "sh" },
		"no capabilities said": func(s *specs.Spec) { s.Process.Capabilities = nil },
		"no program":           func(s *specs.Spec) { s.Process.Args = nil },
		"cwd with ..":          func(s *specs.Spec) { s.Process.Cwd = "/a/../b" },
		"relative cwd":         func(s *specs.Spec) { s.Process.Cwd = "a" },
		"bad environment":      func(s *specs.Spec) { s.Process.Env = []string{"A"} },
		"nameless environment": func(s *specs.Spec) { s.Process.Env = []string{"=A"} },
		"relative PATH":        func(s *specs.Spec) { s.Process.Env = []string{"PATH=/bin:"} },
		"small capabilities":   func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"cap_chown"} },
		"two limits of a kind": func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_CORE"}}
		},
		"user namespace":           namespace(specs.UserNamespace, "/proc/7/ns/user"),
		"shared PID namespace":     namespace(specs.PIDNamespace, "/proc/7/ns/pid"),
		"a network of its own":     namespace(specs.NetworkNamespace, ""),
		"group namespace":          namespace(specs.CgroupNamespace, ""),
		"time namespace":           namespace(specs.TimeNamespace, ""),
		"the host's processes":     func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[2:] },
		"seccomp agent":            func(s *specs.Spec) { s.Linux.Seccomp.ListenerPath = "/run/agent" },
		"seccomp notification":     func(s *specs.Spec) { s.Linux.Seccomp.DefaultAction = specs.ActNotify },
		"systemd's group":          func(s *specs.Spec) { s.Linux.CgroupsPath = "a.slice:cri:c" },
		"group above":              func(s *specs.Spec) { s.Linux.CgroupsPath = "/../c" },
		"masked path of /dev":      func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"/dev/null"} },
		"masked path with ..":      func(s *specs.Spec) { s.Linux.MaskedPaths = []string{"/a/.."} },
		"read-only root":           func(s *specs.Spec) { s.Linux.ReadonlyPaths = []string{"/"} },
		"sysfs ro":                 option(4, "ro"),
		"shared bind":              option(7, "rshared"),
		"mapped bind":              option(7, "idmap"),
		"copied bind":              option(7, "tmpcopyup"),
		"unknown option":           option(7, "whatever"),
		"data of proc":             option(0, "hidepid=2"),
		"data of devices":          option(1, "uid=7"),
		"two options in one":       option(1, "size=1,uid=7"),
		"idmapped":                 func(s *specs.Spec) { s.Mounts[7].UIDMappings = []specs.LinuxIDMapping{{}} },
		"tmpfs":                    func(s *specs.Spec) { s.Mounts[7].Type = "tmpfs" },
		"proc elsewhere":           func(s *specs.Spec) { s.Mounts[0].Destination = "/process" },
		"mount at the root":        mountAt("/"),
		"mount in proc":            mountAt("/proc/sys"),
		"mount in sys":             mountAt("/sys/fs"),
		"mount at a device":        mountAt("/dev/null"),
		"mount deep in dev":        mountAt("/dev/a/b"),
		"mount over another":       mountAt("/etc"),
		"mount at another's":       mountAt("/etc/hosts"),
		"mount with ..":            mountAt("/a/../proc"),
		"no proc":                  func(s *specs.Spec) { s.Mounts = s.Mounts[1:] },
		"dev before what is on it": func(s *specs.Spec) { s.Mounts[1], s.Mounts[2] = s.Mounts[2], s.Mounts[1] },
	} {
		t.Run(name, func(t *testing.T) {
			s := ordinary()
			change(s)
			if _, err := Of(s, v1()); err == nil || !strings.HasPrefix(err.Error(), "not ordinary: ") {
				t.Errorf("it is ordinary: %v", err)
			}
		})
	}
	m := v1()
	m.Trees[0].Whole = false
	if _, err := Of(ordinary(), m); err == nil {
		t.Error("a part of a hierarchy is ordinary")
	}
}

func TestOrdinaryOnV2(t *testing.T) {
	s, err := Of(unified(), v2())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Procs, []string{"/sys/fs/cgroup/kubepods/pod1/c/cgroup.procs"}) || len(s.Trees) > 0 || !s.ownGroups() {
		t.Errorf("joins %v, of which %v are shown", s.Procs, s.Trees)
	}
	groups := s.Mounts[slices.IndexFunc(s.Mounts, func(m Mount) bool { return m.Target == "/sys/fs/cgroup" })]
	if groups.Kind != Unified || groups.Deep || groups.Set&unix.MOUNT_ATTR_RDONLY == 0 {
		t.Errorf("groups are shown by %+v", groups)
	}
}

// TestNotOrdinaryOnV2 changes one thing of what is ordinary on v2.
func TestNotOrdinaryOnV2(t *testing.T) {
	file := func(name, value string) func(*specs.Spec, *Machine) {
		return func(s *specs.Spec, _ *Machine) { s.Linux.Resources.Unified[name] = value }
	}
	for name, change := range map[string]func(*specs.Spec, *Machine){
		"the host's groups shown": func(s *specs.Spec, _ *Machine) { s.Linux.Namespaces = s.Linux.Namespaces[:5] },
		"another's groups":        func(s *specs.Spec, _ *Machine) { s.Linux.Namespaces[5].Path = "/proc/7/ns/cgroup" },
		"frozen":                  file("cgroup.freeze", "1"),
		"killed":                  file("cgroup.kill", "1"),
		"threaded":                file("cgroup.type", "threaded"),
		"reclaimed":               file("memory.reclaim", "1"),
		"no process":              file("pids.max", "0\n"),
		"file elsewhere":          file("memory./../../memory.max", "1"),
		"file without controller": file("weight", "1"),
		"a part of the hierarchy": func(_ *specs.Spec, m *Machine) { m.Trees[0].Whole = false },
		"hierarchy elsewhere":     func(_ *specs.Spec, m *Machine) { m.Trees[0].Mount = "/mnt" },
		"a named one beside it":   func(_ *specs.Spec, m *Machine) { m.Trees = append(m.Trees, v1().Trees[2]) },
		"block I/O":               func(s *specs.Spec, _ *Machine) { s.Linux.Resources.BlockIO = &specs.LinuxBlockIO{} },
		"device rules":            func(s *specs.Spec, _ *Machine) { s.Linux.Resources.Devices[0].Allow = true },
	} {
		t.Run(name, func(t *testing.T) {
			s, m := unified(), v2()
			change(s, &m)
			if _, err := Of(s, m); err == nil || !strings.HasPrefix(err.Error(), "not ordinary: ") {
				t.Errorf("it is ordinary: %v", err)
			}
		})
	}
}
