package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var securityCases = []testCase{
	{"Users", users},
	{"StrictGroups", strictGroups},
	{"Capabilities", capabilities},
	{"Seccomp", seccomp},
	{"Confinement", confinement},
	{"Privileged", privileged},
	{"HostNamespaces", hostNamespaces},
	{"SharedNamespaces", sharedNamespaces},
	{"TargetNamespace", targetNamespace},
	{"Mounts", mounts},
	{"MountPropagation", mountPropagation},
	{"RecursiveReadOnly", recursiveReadOnly},
	{"Devices", devices},
}

type contextChange = func(*runtimeapi.LinuxContainerSecurityContext)

func secure(f contextChange) change {
	return func(c *runtimeapi.ContainerConfig) { f(security(c)) }
}

func users(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	for i, x := range []struct {
		change contextChange
		want   string
	}{
		{
			func(c *runtimeapi.LinuxContainerSecurityContext) { c.RunAsUser = number(1000) },
			"uid=1000(app) gid=1000(app) groups=1000(app),2000(extra)",
		},
		{
			func(c *runtimeapi.LinuxContainerSecurityContext) { c.RunAsUsername = "app" },
			"uid=1000(app) gid=1000(app) groups=1000(app),2000(extra)",
		},
		{
			func(c *runtimeapi.LinuxContainerSecurityContext) { c.RunAsUser, c.RunAsGroup = number(1000), number(5) },
			"uid=1000(app) gid=5 groups=5,2000(extra)",
		},
		{func(c *runtimeapi.LinuxContainerSecurityContext) {
			c.RunAsUser, c.SupplementalGroups = number(77), []int64{8, 9}
		}, "uid=77 gid=0(root) groups=0(root),8,9"},
	} {
		id := p.sleeper("c"+itoa(i), secure(x.change))
		p.executes(id)
		if got := p.sh(id, "id"); got != x.want {
			t.Errorf("got %q, want %q", got, x.want)
		}
		if got := p.sh(id, "grep ^Uid /proc/1/status | cut -f2"); !strings.HasPrefix(x.want, "uid="+got) {
			t.Errorf("process 1 is %s, want %s", got, x.want)
		}
	}
	if _, err := p.create(func() *runtimeapi.ContainerConfig {
		c := p.container("nobody", "true")
		security(c).RunAsUsername = "no-such-user"
		return c
	}()); err == nil {
		t.Error("a user that the image does not know was taken")
	}
}

func strictGroups(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", secure(func(c *runtimeapi.LinuxContainerSecurityContext) {
		c.RunAsUser, c.SupplementalGroupsPolicy = number(1000), runtimeapi.SupplementalGroupsPolicy_Strict
	}))
	p.expect(id, map[string]string{"id": "uid=1000(app) gid=1000(app) groups=1000(app)"})
	if u := p.status(id).GetUser().GetLinux(); u.GetUid() != 1000 || u.GetGid() != 1000 {
		t.Errorf("status: %v", u)
	}
}

func capabilities(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	for i, x := range []struct {
		add, drop []string
		want      string
	}{
		{nil, nil, "00000000a80425fb"},
		{nil, []string{"ALL"}, "0000000000000000"},
		{[]string{"NET_ADMIN"}, []string{"ALL"}, "0000000000001000"},
		{[]string{"NET_ADMIN"}, []string{"CHOWN"}, "00000000a80435fa"},
	} {
		id := p.sleeper("c"+itoa(i), secure(func(c *runtimeapi.LinuxContainerSecurityContext) {
			c.Capabilities = &runtimeapi.Capability{AddCapabilities: x.add, DropCapabilities: x.drop}
		}))
		p.executes(id)
		for _, of := range []string{"1", "self"} {
			if got := p.sh(id, "grep CapEff /proc/"+of+"/status | cut -f2"); got != x.want {
				t.Errorf("add %q, drop %q, process %s: got %s, want %s", x.add, x.drop, of, got, x.want)
			}
		}
	}
}

func seccomp(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	file := filepath.Join(t.TempDir(), "profile.json")
	must(t)(os.WriteFile(file, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`), 0o600))
	profile := func(kind runtimeapi.SecurityProfile_ProfileType, ref string) change {
		return secure(func(c *runtimeapi.LinuxContainerSecurityContext) {
			c.Seccomp = &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
		})
	}
	const mode = "grep -w Seccomp: /proc/1/status | cut -f2"
	id := p.sleeper("default", profile(runtimeapi.SecurityProfile_RuntimeDefault, ""))
	p.executes(id)
	p.expect(id, map[string]string{
		mode: "2", "mkdir /tmp/x && echo made": "made",
		"unshare -U true 2>/dev/null || echo denied": "denied",
	})
	id = p.sleeper("unconfined", profile(runtimeapi.SecurityProfile_Unconfined, ""))
	p.expect(id, map[string]string{mode: "0"})
	id = p.sleeper("own", profile(runtimeapi.SecurityProfile_Localhost, file))
	p.executes(id)
	p.expect(id, map[string]string{mode: "2", "mkdir /tmp/x 2>/dev/null || echo denied": "denied"})
	c := p.container("missing", "true")
	profile(runtimeapi.SecurityProfile_Localhost, "/no/such/profile.json")(c)
	if _, err := p.create(c); err == nil {
		t.Error("a profile that is not there was taken")
	}
}

func confinement(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("readonly", secure(func(c *runtimeapi.LinuxContainerSecurityContext) {
		c.ReadonlyRootfs, c.NoNewPrivs = true, true
		c.MaskedPaths, c.ReadonlyPaths = []string{"/proc/version", "/proc/timer_list"}, []string{"/proc/sys"}
	}))
	p.executes(id)
	p.expect(id, map[string]string{
		"touch /x 2>/dev/null || echo ro":                                          "ro",
		"touch /dev/shm/x && echo rw":                                              "rw",
		"grep NoNewPrivs /proc/1/status | cut -f2":                                 "1",
		"cat /proc/version | wc -c":                                                "0",
		"(echo 1 > /proc/sys/net/ipv4/ip_forward) 2>/dev/null || echo ro":          "ro",
		"f=/sys/kernel/mm/ksm/run; (cat $f > $f) 2>/dev/null || echo ro":           "ro",
		"mkdir /dev/shm/m; mount -t tmpfs x /dev/shm/m 2>/dev/null || echo denied": "denied",
	})
	id = p.sleeper("writable", nil)
	p.expect(id, map[string]string{
		"touch /x && echo rw": "rw", "grep NoNewPrivs /proc/1/status | cut -f2": "0", "test -e /dev/kmsg || echo " +
			"none": "none", "stat -c %a /dev/shm": "1777",
	})
}

func privileged(t *testing.T, s *suite) {
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	id := p.sleeper("main", secure(func(c *runtimeapi.LinuxContainerSecurityContext) { c.Privileged = true }))
	p.expect(id, map[string]string{
		"mkdir -p /tmp/m && mount -t tmpfs x /tmp/m && echo mounted": "mounted",
		"test -e /dev/kmsg && echo there":                            "there",
		"grep -w Seccomp: /proc/1/status | cut -f2":                  "0",
	})
	// An unprivileged one beside it shares its sysfs.
	other := p.sleeper("other", nil)
	const sys = "f=/sys/kernel/mm/ksm/run; (cat $f > $f) 2>/dev/null && echo rw || echo ro"
	p.expect(other, map[string]string{sys: "ro"})
	if !s.lacks(t, "Sysfs") {
		p.expect(id, map[string]string{sys: "rw"})
	}

	p = s.pod(t, nil)
	c := p.container("main", "true")
	security(c).Privileged = true
	if _, err := p.create(c); err == nil {
		t.Error("a privileged container was made in a sandbox that is not")
	}
}

const namespaces = "for n in net ipc uts pid; do readlink /proc/self/ns/$n; done"

func hostNamespaces(t *testing.T, s *suite) {
	const node = runtimeapi.NamespaceMode_NODE
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Hostname = ""
		c.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Network: node, Pid: node, Ipc: node}
	})
	id := p.sleeper("main", nil)
	var want []string
	for _, n := range []string{"net", "ipc", "uts", "pid"} {
		l, err := os.Readlink("/proc/self/ns/" + n)
		must(t)(err)
		want = append(want, l)
	}
	name, err := os.Hostname()
	must(t)(err)
	p.expect(id, map[string]string{namespaces: strings.Join(want, "\n"), "hostname": name, "test -d /proc/" +
		itoa(os.Getpid()) + " && echo seen": "seen"})
}

func sharedNamespaces(t *testing.T, s *suite) {
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	a := p.sleeper("a", nil)
	b := p.run("b", nil, "sleep", "47114711")
	if x, y := p.sh(a, namespaces), p.sh(b, namespaces); x != y {
		t.Errorf("got %q and %q", x, y)
	}
	p.eventually("the other's process to be seen", func() bool { return strings.Contains(p.sh(a, "ps"), "47114711") })
	p.sh(a, "echo x > /dev/shm/f")
	p.expect(b, map[string]string{"cat /dev/shm/f": "x"})
	// Process 1 is the pod's, so that a container's end is not the others'.
	_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: a})
	must(t)(err)
	p.expect(b, map[string]string{"echo alive": "alive"})

	p = s.pod(t, nil)
	a, b = p.sleeper("a", nil), p.sleeper("b", nil)
	if x, y := p.sh(a, "readlink /proc/self/ns/pid"), p.sh(b, "readlink /proc/self/ns/pid"); x == y {
		t.Errorf("PID namespaces of their own are the same: %s", x)
	}
	p.executes(a)
}

func targetNamespace(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	a := p.sleeper("a", nil)
	b := p.sleeper("debug", secure(func(c *runtimeapi.LinuxContainerSecurityContext) {
		c.NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: a}
	}))
	if x, y := p.sh(a, "readlink /proc/self/ns/pid"), p.sh(b, "readlink /proc/self/ns/pid"); x != y {
		t.Errorf("got %s and %s", x, y)
	}
}

func mounts(t *testing.T, s *suite) {
	dir := t.TempDir()
	must(t)(os.WriteFile(dir+"/f", []byte("host\n"), 0o644))
	must(t)(os.Symlink("f", dir+"/link"))
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/rw", HostPath: dir},
			{ContainerPath: "/ro", HostPath: dir, Readonly: true},
			{ContainerPath: "/etc/one", HostPath: dir + "/f", Readonly: true},
			{ContainerPath: "/by/link", HostPath: dir + "/link"},
			{ContainerPath: "/rw/inside", HostPath: dir, Readonly: true},
			{ContainerPath: "/etc/hosts", HostPath: dir + "/f"},
		}
	})
	p.expect(id, map[string]string{
		"cat /rw/f /ro/f /etc/one /by/link /etc/hosts": "host\nhost\nhost\nhost\nhost",
		"touch /rw/x && echo rw":                       "rw",
		"touch /ro/x 2>/dev/null || echo ro":           "ro",
		"touch /rw/inside/x 2>/dev/null || echo ro":    "ro",
		"(echo >> /etc/one) 2>/dev/null || echo ro":    "ro",
	})
	if _, err := os.Stat(dir + "/x"); err != nil {
		t.Error(err)
	}
	want := map[string]*runtimeapi.Mount{}
	for _, m := range p.status(id).GetMounts() {
		want[m.GetContainerPath()] = m
	}
	if m := want["/ro"]; m.GetHostPath() != dir || !m.GetReadonly() || want["/rw"].GetReadonly() {
		t.Errorf("status: %v", want)
	}
}

func mountPropagation(t *testing.T, s *suite) {
	dir := t.TempDir()
	must(t)(unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	defer func() { must(t)(unix.Unmount(dir, unix.MNT_DETACH)) }()
	must(t)(unix.Mount("", dir, "", unix.MS_SHARED, ""))
	must(t)(os.MkdirAll(dir+"/host", 0o755))
	must(t)(os.MkdirAll(dir+"/ctr", 0o755))
	p := s.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) {
		security(c).Privileged = true
		c.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/private", HostPath: dir},
			{ContainerPath: "/slave", HostPath: dir, Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{ContainerPath: "/shared", HostPath: dir, Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		}
	})
	must(t)(unix.Mount("x", dir+"/host", "tmpfs", 0, ""))
	defer func() { must(t)(unix.Unmount(dir+"/host", unix.MNT_DETACH)) }()
	must(t)(os.WriteFile(dir+"/host/f", nil, 0o644))
	p.expect(id, map[string]string{
		"test -e /private/host/f || echo no": "no", "test -e /slave/host/f && echo yes": "yes", "test -e /shared/host/f && " +
			"echo yes": "yes",
		"mount -t tmpfs y /shared/ctr && touch /shared/ctr/f && echo mounted": "mounted",
	})
	if _, err := os.Stat(dir + "/ctr/f"); err != nil {
		t.Errorf("a mount of the container: %v", err)
	}
	p.expect(id, map[string]string{"umount /shared/ctr && echo gone": "gone"})
}

func recursiveReadOnly(t *testing.T, s *suite) {
	dir := t.TempDir()
	must(t)(os.MkdirAll(dir+"/sub", 0o755))
	must(t)(unix.Mount("x", dir+"/sub", "tmpfs", 0, ""))
	defer func() { must(t)(unix.Unmount(dir+"/sub", unix.MNT_DETACH)) }()
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/ro", HostPath: dir, Readonly: true},
			{ContainerPath: "/rro", HostPath: dir, Readonly: true, RecursiveReadOnly: true},
		}
	})
	p.expect(id, map[string]string{"touch /ro/sub/x && echo rw": "rw", "touch /rro/sub/y 2>/dev/null || echo ro": "ro"})
}

func devices(t *testing.T, s *suite) {
	p := s.pod(t, nil)
	id := p.sleeper("main", func(c *runtimeapi.ContainerConfig) {
		c.Devices = []*runtimeapi.Device{
			{HostPath: "/dev/kmsg", ContainerPath: "/dev/messages", Permissions: "r"},
			{HostPath: "/dev/zero", ContainerPath: "/dev/nothing", Permissions: "rwm"},
		}
	})
	p.expect(id, map[string]string{
		"head -c3 /dev/nothing | od -An -tx1 | tr -d ' '":                                 "000000",
		"(: > /dev/messages) 2>/dev/null || echo denied":                                  "denied",
		"mknod /tmp/mem c 1 1 && cat /tmp/mem 2>/dev/null || echo denied":                 "denied",
		"for d in null zero full random urandom tty; do test -c /dev/$d || echo $d; done": "",
	})
}
