package oci

import (
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// input is a plain container in a plain pod, changed by each test.
func input(change func(*Input)) Input {
	in := Input{
		ID: "c1", SandboxID: "s1", Rootfs: "/run/x/rootfs", Cgroup: "/pods/c1",
		Sandbox: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u1"}, Hostname: "web-host",
		},
		Container: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "img"}, Command: []string{"/bin/app"},
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			}},
		},
		Namespaces: Namespaces{Network: "/ns/net", IPC: "/ns/ipc", UTS: "/ns/uts"},
		Files:      Files{Hosts: "/f/hosts", Hostname: "/f/hostname", ResolvConf: "/f/resolv.conf", Shm: "/f/shm"},
		Host:       Host{Hostname: "node", Capabilities: append(defaultCapabilities(), "CAP_SYS_ADMIN", "CAP_NET_ADMIN"), OOMScoreAdjMin: -1000},
	}
	if change != nil {
		change(&in)
	}
	return in
}

func sc(in *Input) *runtimeapi.LinuxContainerSecurityContext {
	return in.Container.Linux.SecurityContext
}

func spec(t *testing.T, change func(*Input)) *specs.Spec {
	t.Helper()
	s, err := Spec(input(change))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestArguments(t *testing.T) {
	for _, tt := range []struct {
		name                           string
		command, args, entrypoint, cmd []string
		want                           string
	}{
		{"image only", nil, nil, []string{"/e"}, []string{"c"}, "/e c"},
		{"args replace cmd", nil, []string{"a"}, []string{"/e"}, []string{"c"}, "/e a"},
		{"command drops both", []string{"/x"}, nil, []string{"/e"}, []string{"c"}, "/x"},
		{"command and args", []string{"/x"}, []string{"a"}, []string{"/e"}, []string{"c"}, "/x a"},
		{"cmd only", nil, nil, nil, []string{"c", "d"}, "c d"},
	} {
		s := spec(t, func(in *Input) {
			in.Container.Command, in.Container.Args = tt.command, tt.args
			in.Image.Entrypoint, in.Image.Cmd = tt.entrypoint, tt.cmd
		})
		if got := strings.Join(s.Process.Args, " "); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if _, err := Spec(input(func(in *Input) { in.Container.Command = nil })); err == nil || !strings.Contains(err.Error(), "no command specified") {
		t.Errorf("without a command: got %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	s := spec(t, func(in *Input) {
		in.Image.Env = []string{"A=image", "PATH=/image", "B=1"}
		in.Container.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte("pod")}, {Key: "HOSTNAME", Value: []byte("x")}}
		in.Container.Tty = true
	})
	want := []string{"PATH=/image", "TERM=xterm", "HOSTNAME=x", "A=pod", "B=1"}
	if !slices.Equal(s.Process.Env, want) {
		t.Errorf("got %q, want %q", s.Process.Env, want)
	}
	if !s.Process.Terminal {
		t.Error("no terminal")
	}
	s = spec(t, func(in *Input) { in.Sandbox.Hostname = "" })
	if !slices.Contains(s.Process.Env, "HOSTNAME=node") || !slices.Contains(s.Process.Env, defaultPath) {
		t.Errorf("defaults: got %q", s.Process.Env)
	}
}

func TestWorkingDirectory(t *testing.T) {
	for _, tt := range []struct{ pod, image, want string }{{"", "", "/"}, {"", "/i", "/i"}, {"/p", "/i", "/p"}} {
		s := spec(t, func(in *Input) { in.Container.WorkingDir, in.Image.WorkingDir = tt.pod, tt.image })
		if s.Process.Cwd != tt.want {
			t.Errorf("%+v: got %q", tt, s.Process.Cwd)
		}
	}
	if _, err := Spec(input(func(in *Input) { in.Container.WorkingDir = "rel" })); err == nil {
		t.Error("a relative directory was taken")
	}
}

func TestNamespaces(t *testing.T) {
	types := func(s *specs.Spec) string {
		var out []string
		for _, n := range s.Linux.Namespaces {
			out = append(out, string(n.Type)+"="+n.Path)
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct {
		name   string
		change func(*Input)
		want   string
	}{
		{"own pid", nil, "mount= network=/ns/net ipc=/ns/ipc uts=/ns/uts pid="},
		{"pod pid", func(in *Input) {
			sc(in).NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			in.Namespaces.PID = "/ns/pid"
		}, "mount= network=/ns/net ipc=/ns/ipc uts=/ns/uts pid=/ns/pid"},
		{"host everything", func(in *Input) {
			sc(in).NamespaceOptions.Pid = runtimeapi.NamespaceMode_NODE
			in.Namespaces = Namespaces{}
		}, "mount="},
		{"v2", func(in *Input) { in.Host.Unified = true }, "mount= network=/ns/net ipc=/ns/ipc uts=/ns/uts pid= cgroup="},
	} {
		if got := types(spec(t, tt.change)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if _, err := Spec(input(func(in *Input) { sc(in).NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD })); err == nil {
		t.Error("a shared PID namespace that is not there was taken for one of the container's own")
	}
}

func TestCapabilities(t *testing.T) {
	for _, tt := range []struct {
		name      string
		add, drop []string
		has, not  string
		n         int
	}{
		{"default", nil, nil, "CAP_CHOWN", "CAP_SYS_ADMIN", 14},
		{"add", []string{"sys_admin"}, nil, "CAP_SYS_ADMIN", "", 15},
		{"drop", nil, []string{"CAP_CHOWN"}, "", "CAP_CHOWN", 13},
		{"drop all add one", []string{"NET_ADMIN"}, []string{"ALL"}, "CAP_NET_ADMIN", "CAP_CHOWN", 1},
		{"add all", []string{"ALL"}, nil, "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE", 16},
		{"add all drop one", []string{"ALL"}, []string{"SYS_ADMIN"}, "CAP_NET_ADMIN", "CAP_SYS_ADMIN", 15},
		{"cannot give", []string{"SYS_RESOURCE"}, nil, "", "CAP_SYS_RESOURCE", 14},
	} {
		c := spec(t, func(in *Input) {
			sc(in).Capabilities = &runtimeapi.Capability{AddCapabilities: tt.add, DropCapabilities: tt.drop}
		}).Process.Capabilities
		if len(c.Bounding) != tt.n || tt.has != "" && !slices.Contains(c.Bounding, tt.has) || slices.Contains(c.Bounding, tt.not) {
			t.Errorf("%s: got %q", tt.name, c.Bounding)
		}
		if !slices.Equal(c.Bounding, c.Effective) || !slices.Equal(c.Bounding, c.Permitted) || len(c.Inheritable)+len(c.Ambient) > 0 {
			t.Errorf("%s: sets differ: %+v", tt.name, c)
		}
	}
	c := spec(t, func(in *Input) {
		sc(in).Capabilities = &runtimeapi.Capability{AddAmbientCapabilities: []string{"NET_ADMIN"}}
	}).Process.Capabilities
	if !slices.Contains(c.Ambient, "CAP_NET_ADMIN") || !slices.Contains(c.Inheritable, "CAP_NET_ADMIN") || !slices.Contains(c.Permitted, "CAP_NET_ADMIN") {
		t.Errorf("ambient: got %+v", c)
	}
	in := input(func(in *Input) {
		sc(in).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_RESOURCE", "CHOWN"}}
	})
	if got := Ungranted(&in); !slices.Equal(got, []string{"CAP_SYS_RESOURCE"}) {
		t.Errorf("ungranted: got %q", got)
	}
}

func TestPrivileged(t *testing.T) {
	privileged := func(in *Input) {
		sc(in).Privileged, sc(in).MaskedPaths = true, []string{"/proc/kcore"}
		sc(in).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		in.Host.Devices = []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c"}}
	}
	if _, err := Spec(input(privileged)); err == nil {
		t.Error("privileged in a sandbox that is not")
	}
	s := spec(t, func(in *Input) {
		privileged(in)
		in.Sandbox.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{Privileged: true}}
	})
	if len(s.Process.Capabilities.Bounding) != 16 || len(s.Linux.MaskedPaths) > 0 || s.Linux.Seccomp != nil || len(s.Linux.Devices) != 1 {
		t.Errorf("got %+v", s.Linux)
	}
	if d := s.Linux.Resources.Devices; len(d) != 1 || !d[0].Allow {
		t.Errorf("devices: got %+v", d)
	}
	for _, m := range s.Mounts {
		if (m.Destination == "/sys" || m.Destination == "/sys/fs/cgroup") && !slices.Contains(m.Options, "rw") {
			t.Errorf("%s: got %q", m.Destination, m.Options)
		}
	}
}

func TestMounts(t *testing.T) {
	at := func(s *specs.Spec, dst string) *specs.Mount {
		i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dst })
		if i < 0 {
			return nil
		}
		return &s.Mounts[i]
	}
	s := spec(t, func(in *Input) {
		in.Container.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/data/sub/deep", HostPath: "/h/deep", Readonly: true, RecursiveReadOnly: true},
			{ContainerPath: "/data", HostPath: "/h/data", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, MountOptions: []string{"noexec"}},
			{ContainerPath: "/etc/hosts", HostPath: "/kubelet/hosts"},
			{ContainerPath: "/img", Image: &runtimeapi.ImageSpec{Image: "x"}},
		}
		in.ImageMounts = []string{"", "", "", "/mnt/img"}
		sc(in).ReadonlyRootfs = true
	})
	if i, j := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/data" }),
		slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/data/sub/deep" }); i > j {
		t.Error("a mount comes before the one it is in")
	}
	if m := at(s, "/data/sub/deep"); !slices.Equal(m.Options, []string{"rbind", "rprivate", "rro"}) {
		t.Errorf("rro: got %q", m.Options)
	}
	if m := at(s, "/data"); !slices.Equal(m.Options, []string{"rbind", "rslave", "rw", "noexec"}) || s.Linux.RootfsPropagation != "rslave" {
		t.Errorf("slave: got %q, root %q", m.Options, s.Linux.RootfsPropagation)
	}
	if m := at(s, "/etc/hosts"); m.Source != "/kubelet/hosts" {
		t.Errorf("hosts: got %q", m.Source)
	}
	if m := at(s, "/img"); m.Source != "/mnt/img" || !slices.Contains(m.Options, "ro") {
		t.Errorf("image: got %+v", m)
	}
	if m := at(s, "/etc/resolv.conf"); !slices.Contains(m.Options, "ro") || !s.Root.Readonly {
		t.Errorf("read-only root: got %q", m.Options)
	}
	if m := at(s, "/dev/shm"); m == nil || m.Source != "/f/shm" || !slices.Contains(m.Options, "rw") {
		t.Errorf("shm: got %+v", m)
	}
	s = spec(t, func(in *Input) {
		in.Container.Mounts = []*runtimeapi.Mount{{ContainerPath: "/dev", HostPath: "/dev"}}
	})
	if at(s, "/dev/pts") != nil || at(s, "/dev").Type != "bind" {
		t.Error("a /dev of the container's own is covered by the runtime's")
	}
	for _, bad := range []*runtimeapi.Mount{
		{ContainerPath: "", HostPath: "/h"},
		{ContainerPath: "/x", HostPath: "/h", RecursiveReadOnly: true},
		{ContainerPath: "/x", HostPath: "/h", Readonly: true, RecursiveReadOnly: true, Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		{ContainerPath: "/x", Image: &runtimeapi.ImageSpec{Image: "not mounted"}},
	} {
		if _, err := Spec(input(func(in *Input) { in.Container.Mounts = []*runtimeapi.Mount{bad} })); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

func TestResources(t *testing.T) {
	r := Resources(&runtimeapi.LinuxContainerResources{
		CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, MemoryLimitInBytes: 1 << 20, CpusetCpus: "0",
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}, Unified: map[string]string{"memory.high": "1"},
	}, Host{Swap: true, Hugetlb: true})
	if *r.CPU.Shares != 512 || *r.CPU.Quota != 50000 || *r.CPU.Period != 100000 || r.CPU.Cpus != "0" || *r.Memory.Limit != 1<<20 || *r.Memory.Swap != 1<<20 {
		t.Errorf("got %+v %+v", r.CPU, r.Memory)
	}
	if len(r.HugepageLimits) != 1 || r.Unified["memory.high"] != "1" {
		t.Errorf("got %+v", r)
	}
	r = Resources(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1, MemorySwapLimitInBytes: 2, HugepageLimits: []*runtimeapi.HugepageLimit{{}}}, Host{})
	if r.Memory.Swap != nil || r.HugepageLimits != nil || r.CPU != nil {
		t.Errorf("without the controllers: got %+v", r)
	}
	if r := Resources(nil, Host{}); r == nil || r.Memory != nil {
		t.Errorf("nothing: got %+v", r)
	}
}

func TestOOMScore(t *testing.T) {
	s := spec(t, func(in *Input) {
		in.Container.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: -997}
		in.Host.OOMScoreAdjMin = 0
	})
	if *s.Process.OOMScoreAdj != 0 {
		t.Errorf("got %d, which this process may not set", *s.Process.OOMScoreAdj)
	}
}

func TestSeccomp(t *testing.T) {
	profile := func(typ runtimeapi.SecurityProfile_ProfileType, body string) func(*Input) {
		return func(in *Input) {
			sc(in).Seccomp = &runtimeapi.SecurityProfile{ProfileType: typ, LocalhostRef: "/p.json"}
			in.Seccomp = []byte(body)
		}
	}
	allows := func(s *specs.Spec, name string) bool {
		return slices.ContainsFunc(s.Linux.Seccomp.Syscalls, func(c specs.LinuxSyscall) bool {
			return c.Action == specs.ActAllow && slices.Contains(c.Names, name) && len(c.Args) == 0
		})
	}
	if s := spec(t, nil); s.Linux.Seccomp != nil {
		t.Error("a filter nobody asked for")
	}
	if s := spec(t, profile(runtimeapi.SecurityProfile_Unconfined, "")); s.Linux.Seccomp != nil {
		t.Error("unconfined has a filter")
	}
	s := spec(t, profile(runtimeapi.SecurityProfile_RuntimeDefault, ""))
	if s.Linux.Seccomp.DefaultAction != specs.ActErrno || !allows(s, "read") || allows(s, "mount") {
		t.Errorf("default profile: %v", s.Linux.Seccomp.DefaultAction)
	}
	s = spec(t, func(in *Input) {
		profile(runtimeapi.SecurityProfile_RuntimeDefault, "")(in)
		sc(in).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	})
	if !allows(s, "mount") {
		t.Error("the default profile does not follow the capabilities")
	}
	s = spec(t, profile(runtimeapi.SecurityProfile_Localhost, `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod"],"action":"SCMP_ACT_ERRNO"}]}`))
	if len(s.Linux.Seccomp.Syscalls) != 1 || s.Linux.Seccomp.Syscalls[0].Names[0] != "chmod" {
		t.Errorf("localhost: got %+v", s.Linux.Seccomp)
	}
	if _, err := Spec(input(profile(runtimeapi.SecurityProfile_Localhost, "{"))); err == nil {
		t.Error("a broken profile was taken")
	}
}

func TestSecurityModules(t *testing.T) {
	armor := func(in *Input) {
		sc(in).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "mine"}
	}
	if _, err := Spec(input(armor)); err == nil || !strings.Contains(err.Error(), "AppArmor") {
		t.Errorf("AppArmor without AppArmor: got %v", err)
	}
	if s := spec(t, func(in *Input) { armor(in); in.Host.AppArmor = true }); s.Process.ApparmorProfile != "mine" {
		t.Errorf("got %q", s.Process.ApparmorProfile)
	}
	linux := func(in *Input) { sc(in).SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c1"} }
	if s := spec(t, linux); s.Process.SelinuxLabel != "" {
		t.Errorf("a level without SELinux: got %q", s.Process.SelinuxLabel)
	}
	typed := func(in *Input) { sc(in).SelinuxOptions = &runtimeapi.SELinuxOption{Type: "container_t"} }
	if s := spec(t, typed); s.Process.SelinuxLabel != "" {
		t.Errorf("a type without SELinux: got %q", s.Process.SelinuxLabel)
	}
	if s := spec(t, func(in *Input) { linux(in); in.Host.SELinux = true }); s.Process.SelinuxLabel != "system_u:system_r:container_t:s0:c1" {
		t.Errorf("got %q", s.Process.SelinuxLabel)
	}
}

func TestDevices(t *testing.T) {
	s := spec(t, func(in *Input) {
		in.Container.Devices = []*runtimeapi.Device{{HostPath: "/dev/x", ContainerPath: "/dev/y", Permissions: "rw"}}
		in.Devices = [][]specs.LinuxDevice{{{Path: "/dev/y", Type: "c", Major: 1, Minor: 3}}}
	})
	d := s.Linux.Resources.Devices
	if len(s.Linux.Devices) != 1 || len(d) != 2 || d[0].Allow || !d[1].Allow || *d[1].Minor != 3 || d[1].Access != "rw" {
		t.Errorf("got %+v, %+v", s.Linux.Devices, d)
	}
	if _, err := Spec(input(func(in *Input) {
		in.Container.Devices = []*runtimeapi.Device{{HostPath: "/dev/x", Permissions: "rx"}}
		in.Devices = [][]specs.LinuxDevice{{{}}}
	})); err == nil {
		t.Error("permission x was taken")
	}
}

func TestCgroupPath(t *testing.T) {
	for _, tt := range []struct{ parent, want string }{
		{"/kubepods/podx", "/kubepods/podx/id"},
		{"kubepods", "/kubepods/id"},
		{"a-b.slice", "/a.slice/a-b.slice/cri-berth-id.scope"},
		{"/a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice/cri-berth-id.scope"},
		{"a.slice/a-b.slice", "/a.slice/a-b.slice/cri-berth-id.scope"},
		{"-.slice", "/cri-berth-id.scope"},
	} {
		if got := CgroupPath(tt.parent, "id"); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.parent, got, tt.want)
		}
	}
}

func BenchmarkSpec(b *testing.B) {
	in := input(func(in *Input) {
		sc(in).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	})
	in.Image = ocispec.ImageConfig{Env: []string{"A=1"}}
	for b.Loop() {
		if _, err := Spec(in); err != nil {
			b.Fatal(err)
		}
	}
}

// TestPodFilesInVolume has a volume where the pod's files are: they come later, or nobody would see them.
func TestPodFilesInVolume(t *testing.T) {
	s := spec(t, func(in *Input) { in.Container.Mounts = []*runtimeapi.Mount{{HostPath: "/vol", ContainerPath: "/etc"}} })
	at := func(dst string) int {
		return slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == dst })
	}
	for _, file := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"} {
		if at("/etc") < 0 || at(file) < at("/etc") {
			t.Errorf("%s is mount %d, /etc is mount %d", file, at(file), at("/etc"))
		}
	}
}
