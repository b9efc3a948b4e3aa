package cri

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/oci"
)

// sharedDir is a directory that is a shared mount of its own until the test ends.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mountTmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("test", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func TestPropagation(t *testing.T) {
	n := newNode(t)
	dir := sharedDir(t)
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.Privileged = true })
	const both, down = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		securityOf(cfg).Privileged = true
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/private", HostPath: dir},
			{ContainerPath: "/down", HostPath: dir, Propagation: down},
			{ContainerPath: "/both", HostPath: dir, Propagation: both},
		}
	}, "sleep", "1000")
	mountTmpfs(t, filepath.Join(dir, "host"))
	const mounted = "; for d in private down both; do grep -c \" /$d/NAME \" /proc/self/mounts; done; true"
	if got := n.sh(t, id, "true"+strings.ReplaceAll(mounted, "NAME", "host")); got != "0\n1\n1" {
		t.Errorf("mounted on the host: got %q", got)
	}
	n.sh(t, id, "mkdir /both/in && mount -t tmpfs x /both/in")
	if got := n.sh(t, id, "true"+strings.ReplaceAll(mounted, "NAME", "in")); got != "0\n1\n1" {
		t.Errorf("mounted in the container: got %q", got)
	}
	if !host.IsMountpoint(filepath.Join(dir, "in")) {
		t.Error("what was mounted in the container is not seen on the host")
	}
	n.sh(t, id, "umount /both/in")
	n.sh(t, id, "mkdir /down/own && mount -t tmpfs x /down/own")
	if host.IsMountpoint(filepath.Join(dir, "own")) {
		t.Error("a mount below a slave is seen on the host")
	}
	private := t.TempDir()
	mountTmpfs(t, filepath.Join(private, "p"))
	if err := unix.Mount("", filepath.Join(private, "p"), "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	for _, p := range []runtimeapi.MountPropagation{both, down} {
		_, err := n.tryRun(pod, "refused", func(cfg *runtimeapi.ContainerConfig) {
			cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/x", HostPath: filepath.Join(private, "p"), Propagation: p}}
		}, "true")
		if err == nil || !strings.Contains(err.Error(), "not a shared") {
			t.Errorf("%s of a private mount: got %v", p, err)
		}
	}
}

func TestRecursiveReadOnly(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	mountTmpfs(t, filepath.Join(dir, "below"))
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/ro", HostPath: dir, Readonly: true}, {ContainerPath: "/rro", HostPath: dir, Readonly: true, RecursiveReadOnly: true},
		}
	}, "sleep", "1000")
	if got := n.sh(t, id, "for d in /ro /ro/below /rro /rro/below; do touch $d/x 2>/dev/null && echo rw || echo ro; done"); got != "ro\nrw\nro\nro" {
		t.Errorf("got %q", got)
	}
	for name, m := range map[string]*runtimeapi.Mount{
		"not read-only": {ContainerPath: "/x", HostPath: dir, RecursiveReadOnly: true},
		"propagation":   {ContainerPath: "/x", HostPath: dir, RecursiveReadOnly: true, Readonly: true, Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
	} {
		_, err := n.tryRun(pod, "refused", func(cfg *runtimeapi.ContainerConfig) { cfg.Mounts = []*runtimeapi.Mount{m} }, "true")
		if err == nil {
			t.Errorf("%s: it runs", name)
		}
	}
}

func TestSysctlsOnTheRealKernel(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) {
		cfg.Linux.Sysctls = map[string]string{
			"kernel.shm_rmid_forced": "1", "kernel.msgmax": "8000", "fs.mqueue.msg_max": "20", "net.ipv4.tcp_syncookies": "0",
			"net/ipv4/conf/all/forwarding": "1",
		}
	})
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	const all = "cd /proc/sys && cat kernel/shm_rmid_forced kernel/msgmax fs/mqueue/msg_max net/ipv4/tcp_syncookies net/ipv4/conf/all/forwarding"
	if got := n.sh(t, id, all); got != "1\n8000\n20\n0\n1" {
		t.Errorf("got %q", got)
	}
	for name, opts := range map[string]*runtimeapi.NamespaceOption{
		"vm.swappiness":         {},
		"kernel.panic":          {},
		"kernel.shm_next_id":    {Ipc: runtimeapi.NamespaceMode_NODE},
		"net.core.somaxconn":    {Network: runtimeapi.NamespaceMode_NODE},
		"kernel/../vm/anything": {},
	} {
		cfg := n.podConfig("bad")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: opts}
		cfg.Linux.Sysctls = map[string]string{name: "1"}
		if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
	cfg := n.podConfig("unknown")
	cfg.Linux.Sysctls = map[string]string{"net.ipv4.no_such_thing": "1"}
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); err == nil || !strings.Contains(err.Error(), "no_such_thing") {
		t.Errorf("unknown: got %v", err)
	}
}

func TestCapabilitiesOfUsers(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	caps := func(uid int64, c *runtimeapi.Capability) func(*runtimeapi.ContainerConfig) {
		return func(cfg *runtimeapi.ContainerConfig) {
			securityOf(cfg).RunAsUser = &runtimeapi.Int64Value{Value: uid}
			securityOf(cfg).Capabilities = c
		}
	}
	const eff = "grep -E 'Cap(Eff|Prm|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u"
	for i, tt := range []struct {
		uid  int64
		c    *runtimeapi.Capability
		want string
	}{
		{0, &runtimeapi.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"CAP_SYS_ADMIN"}}, ""},
		{0, &runtimeapi.Capability{AddCapabilities: []string{"cap_net_admin"}, DropCapabilities: []string{"ALL"}}, "0000000000000000\n0000000000001000"},
		{0, &runtimeapi.Capability{AddCapabilities: []string{"ALL"}, DropCapabilities: []string{"ALL"}}, "0000000000000000"},
		{1000, &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}, "0000000000000000\n0000000000000400"},
		{1000, &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"NET_BIND_SERVICE"}}, "0000000000000400"},
	} {
		name := fmt.Sprint("c", i)
		out := strings.TrimSpace(n.output(t, pod, name, caps(tt.uid, tt.c), "sh", "-c", eff))
		id := n.run(t, pod, "x"+name, caps(tt.uid, tt.c), "sleep", "1000")
		if got := n.sh(t, id, eff); got != out {
			t.Errorf("%v: an exec has %q, the container %q", tt.c, got, out)
		}
		if tt.want != "" && out != tt.want {
			t.Errorf("%v: got %q, want %q", tt.c, out, tt.want)
		}
	}
}

// TestLimits looks at the kernel's files for what the CRI asks for.
func TestLimits(t *testing.T) {
	n := newNode(t)
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	pod, _ := n.pod(t, "a", nil)
	v2 := h.Mode() == cgroups.Unified
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		r := cfg.Linux.Resources
		r.CpusetCpus, r.CpusetMems, r.CpuShares, r.CpuQuota, r.CpuPeriod = "0", "0", 512, 50000, 100000
		r.MemoryLimitInBytes, r.MemorySwapLimitInBytes = 64<<20, 96<<20
		r.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}}
		if v2 {
			r.Unified = map[string]string{"memory.high": "50331648", "memory.oom.group": "1", "pids.max": "77"}
		}
	}, "sleep", "1000")
	path := n.containerRecord(t, id).Cgroup
	want := map[string]string{
		"cpuset/cpuset.cpus": "0", "cpuset/cpuset.mems": "0", "cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "50000",
		"memory/memory.limit_in_bytes": "67108864", "memory/memory.memsw.limit_in_bytes": "100663296",
		"hugetlb/hugetlb.2MB.limit_in_bytes": "4194304",
	}
	if v2 {
		want = map[string]string{
			"/cpuset.cpus": "0", "/cpuset.mems": "0", "/cpu.max": "50000 100000", "/memory.max": "67108864", "/memory.swap.max": "33554432",
			"/hugetlb.2MB.max": "4194304", "/memory.high": "50331648", "/memory.oom.group": "1", "/pids.max": "77",
		}
	}
	for file, value := range want {
		controller, name, _ := strings.Cut(file, "/")
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, path, name))
		switch {
		case os.IsNotExist(err):
			t.Logf("%s: this kernel does not have it", file)
		case err != nil || strings.TrimSpace(string(b)) != value:
			t.Errorf("%s: got %q, %v, want %s", file, b, err, value)
		}
	}
	if v2 {
		return
	}
	// The names of v2 mean nothing here, and must not be dropped in silence.
	_, err = n.tryRun(pod, "v2", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Linux.Resources.Unified = map[string]string{"memory.high": "50331648"}
	}, "true")
	if err == nil {
		t.Error("unified settings on v1: it runs")
	}
}

func TestProcMount(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	masked := n.run(t, pod, "masked", func(cfg *runtimeapi.ContainerConfig) {
		securityOf(cfg).MaskedPaths, securityOf(cfg).ReadonlyPaths = []string{"/proc/keys", "/proc/nothing", "/sys/firmware"}, []string{"/proc/sys", "/proc/nothing"}
	}, "sleep", "1000")
	open := n.run(t, pod, "unmasked", nil, "sleep", "1000")
	if got := n.sh(t, masked, "wc -c < /proc/keys; ls /sys/firmware | wc -l; (echo 0 > /proc/sys/net/ipv4/tcp_syncookies) 2>/dev/null && echo rw || echo ro"); got != "0\n0\nro" {
		t.Errorf("masked: got %q", got)
	}
	if got := n.sh(t, open, "(echo 0 > /proc/sys/net/ipv4/tcp_syncookies) 2>/dev/null && echo rw || echo ro"); got != "rw" {
		t.Errorf("unmasked: got %q", got)
	}
}

func TestRefusedSecurity(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	host := n.core.host.Host
	for name, tt := range map[string]struct {
		change func(*runtimeapi.LinuxContainerSecurityContext)
		want   string
		ok     bool
	}{
		"apparmor localhost": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "x"}
		}, "AppArmor", host.AppArmor},
		"apparmor of older clients": {func(s *runtimeapi.LinuxContainerSecurityContext) { s.ApparmorProfile = "localhost/x" }, "AppArmor", host.AppArmor}, //nolint:staticcheck // that is what it is about
		"privileged in a plain pod": {func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }, "privileged", false},
		"group without a user": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsGroup = &runtimeapi.Int64Value{Value: 5}
		}, "without a user", false},
		"no such user": {func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "nobodyknows" }, "nobodyknows", false},
		"seccomp missing": {func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/no/such/profile"}
		}, "/no/such/profile", false},
	} {
		if tt.ok {
			continue
		}
		_, err := n.tryRun(pod, strings.ReplaceAll(name, " ", "-"), func(cfg *runtimeapi.ContainerConfig) { tt.change(securityOf(cfg)) }, "sleep", "1000")
		if err == nil || !strings.Contains(err.Error(), tt.want) || status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
	// What the kernel does not have and the pod does not insist on.
	id := n.run(t, pod, "default", func(cfg *runtimeapi.ContainerConfig) {
		securityOf(cfg).Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		securityOf(cfg).SelinuxOptions = &runtimeapi.SELinuxOption{}
		if !host.SELinux {
			securityOf(cfg).SelinuxOptions = &runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "container_t", Level: "s0:c1"}
		}
	}, "sleep", "1000")
	n.sh(t, id, "true")
}

func TestStopSignals(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	const quits = "berth.test/quits:1"
	if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(boxWith(t, quits, ocispec.ImageConfig{StopSignal: "SIGQUIT"})), nil); err != nil {
		t.Fatal(err)
	}
	const unsaid = runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT
	for _, tt := range []struct {
		sig         runtimeapi.Signal
		image, trap string
	}{
		{runtimeapi.Signal_SIGNAL_SIGUSR1, boxImage, "USR1"},
		{runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, boxImage, "37"},
		{unsaid, boxImage, "TERM"},
		{unsaid, quits, "QUIT"},
		{runtimeapi.Signal_SIGNAL_SIGUSR2, quits, "USR2"}, // the pod's word counts more than the image's
	} {
		sig, trap := tt.sig, tt.trap
		id := n.run(t, pod, "c"+trap, func(cfg *runtimeapi.ContainerConfig) { cfg.StopSignal, cfg.Image.Image = sig, tt.image },
			"sh", "-c", "trap 'exit 9' "+trap+"; echo ready; while :; do sleep 0.05; done")
		eventually(t, func() bool { return logText(t, statusOf(t, n.Server, id).LogPath) == "ready\n" })
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 60}); err != nil {
			t.Fatal(err)
		}
		if st := statusOf(t, n.Server, id); st.ExitCode != 9 {
			t.Errorf("%s: got %v", sig, st)
		}
	}
}

func TestPrivilegedDevices(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.Privileged = true })
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		securityOf(cfg).Privileged = true
		securityOf(cfg).NoNewPrivs = false
		securityOf(cfg).MaskedPaths = []string{"/proc/version"} // privileged wins
	}, "sleep", "1000")
	if got := n.sh(t, id, "wc -c < /proc/version | grep -c '^0$'; grep -w Seccomp: /proc/self/status | cut -f2; (echo x > /proc/sys/kernel/domainname) && echo rw"); got != "0\n0\nrw" {
		t.Errorf("got %q", got)
	}
	dev := n.run(t, pod, "device", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Devices = []*runtimeapi.Device{
			{HostPath: "/dev/null", ContainerPath: "/dev/ro", Permissions: "r"}, {HostPath: "/dev/zero", ContainerPath: "/dev/rw", Permissions: "rw"},
		}
	}, "sleep", "1000")
	if got := n.sh(t, dev, "head -c2 /dev/rw | wc -c; ls -l /dev/ro | cut -c1"); got != "2\nc" {
		t.Errorf("devices: got %q", got)
	}
	_, err := n.tryRun(pod, "nodevice", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Devices = []*runtimeapi.Device{{HostPath: "/dev/nothing", ContainerPath: "/dev/x", Permissions: "rwm"}}
	}, "true")
	if err == nil || !strings.Contains(err.Error(), "/dev/nothing") {
		t.Errorf("missing device: got %v", err)
	}
}

// TestDigitsAreNumbers: an image says who a number is, but not that it is a name.
func TestDigitsAreNumbers(t *testing.T) {
	n := newNode(t)
	name := "berth.test/digits:1"
	files := []imagetest.File{
		{Name: "etc/passwd", Body: "1000:x:0:0:root by another name:/:/bin/sh\n"}, {Name: "etc/group", Body: "1001:x:0:\n"},
	}
	archive := boxWith(t, name, ocispec.ImageConfig{User: "1000:1001"}, files...)
	if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(archive), nil); err != nil {
		t.Fatal(err)
	}
	st, err := n.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	if err != nil || st.Image.Uid.GetValue() != 1000 || st.Image.Username != "" {
		t.Errorf("the image's user is %v, %q, %v", st.GetImage().GetUid(), st.GetImage().GetUsername(), err)
	}
	pod, _ := n.pod(t, "a", nil)
	for kind, c := range map[string]struct {
		sc   func(*runtimeapi.LinuxContainerSecurityContext)
		want string
	}{
		"image":    {func(*runtimeapi.LinuxContainerSecurityContext) {}, "1000 1001"},
		"user":     {func(sc *runtimeapi.LinuxContainerSecurityContext) { sc.RunAsUser = &runtimeapi.Int64Value{Value: 1000} }, "1000 0"},
		"username": {func(sc *runtimeapi.LinuxContainerSecurityContext) { sc.RunAsUsername = "1000:1001" }, "1000 1001"},
	} {
		id := n.run(t, pod, kind, func(cfg *runtimeapi.ContainerConfig) {
			cfg.Image.Image = name
			c.sc(securityOf(cfg))
		}, "sleep", "1000")
		made, err := n.core.ctrs.Table.ByID.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		kernel, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", made.Record().Pid))
		if err != nil {
			t.Fatal(err)
		}
		uid, gid, _ := strings.Cut(c.want, " ")
		for key, want := range map[string]string{"Uid:": uid, "Gid:": gid} {
			_, line, _ := strings.Cut(string(kernel), key)
			line, _, _ = strings.Cut(line, "\n")
			if got := strings.Fields(line); strings.Join(got, " ") != strings.TrimSpace(strings.Repeat(want+" ", 4)) {
				t.Errorf("%s: %s is %v, want %s", kind, key, got, want)
			}
		}
		if got := n.sh(t, id, "echo $(id -u) $(id -g)"); got != c.want {
			t.Errorf("%s: an exec is %s, want %s", kind, got, c.want)
		}
		if s := statusOf(t, n.Server, id).User.Linux; fmt.Sprint(s.Uid, " ", s.Gid) != c.want {
			t.Errorf("%s: the status says %v", kind, s)
		}
	}
}

// TestAppArmorDefault: where the kernel has AppArmor, a container that says nothing about it is confined, and so is
// what is run in it.
func TestAppArmorDefault(t *testing.T) {
	n := newNode(t)
	if !n.core.host.Host.AppArmor {
		t.Skip("this kernel has no AppArmor")
	}
	if err := n.core.host.Armor.Ensure(t.Context()); errors.Is(err, oci.ErrNoProfile) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	label := func(pid int) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/attr/apparmor/current", pid))
		if errors.Is(err, os.ErrNotExist) {
			b, err = os.ReadFile(fmt.Sprintf("/proc/%d/attr/current", pid))
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.Privileged = true })
	kind := func(p runtimeapi.SecurityProfile_ProfileType) func(*runtimeapi.ContainerConfig) {
		return func(cfg *runtimeapi.ContainerConfig) {
			securityOf(cfg).Apparmor = &runtimeapi.SecurityProfile{ProfileType: p}
		}
	}
	const confined = oci.AppArmorDefault + " (enforce)"
	for name, c := range map[string]struct {
		change func(*runtimeapi.ContainerConfig)
		want   string
	}{
		"silent":     {func(*runtimeapi.ContainerConfig) {}, confined},
		"default":    {kind(runtimeapi.SecurityProfile_RuntimeDefault), confined},
		"unconfined": {kind(runtimeapi.SecurityProfile_Unconfined), "unconfined"},
		"privileged": {func(cfg *runtimeapi.ContainerConfig) { securityOf(cfg).Privileged = true }, "unconfined"},
	} {
		id := n.run(t, pod, name, func(cfg *runtimeapi.ContainerConfig) {
			securityOf(cfg).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
			c.change(cfg)
		}, "sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
		eventually(t, func() bool { return logText(t, statusOf(t, n.Server, id).LogPath) == "ready\n" })
		made, err := n.core.ctrs.Table.ByID.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := label(made.Record().Pid); got != c.want {
			t.Errorf("%s: the container is %q, want %q", name, got, c.want)
		}
		if got := n.sh(t, id, "cat /proc/self/attr/current"); got != c.want {
			t.Errorf("%s: an exec is %q, want %q", name, got, c.want)
		}
		want := map[bool]string{true: "refused", false: "mounted"}[c.want == confined]
		if got := n.sh(t, id, "mkdir -p /tmp/m; mount -t tmpfs x /tmp/m 2>/dev/null && echo mounted || echo refused"); got != want {
			t.Errorf("%s: a mount is %s, want %s", name, got, want)
		}
		// What programs do all day.
		n.sh(t, id, "sleep 100 & kill $!; echo x | cat > /tmp/f; nc -l -p 7777 -e true & (echo | nc -w 1 127.0.0.1 7777 || true); ls /proc/1/fd > /dev/null; cat /proc/1/environ > /dev/null")
		if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 60}); err != nil {
			t.Fatal(err)
		}
		if st := statusOf(t, n.Server, id); st.ExitCode != 7 {
			t.Errorf("%s: did not get its signal: %v", name, st)
		}
	}
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(st.Info["info"], `"appArmor":"`+oci.AppArmorDefault+`"`) {
		t.Errorf("the status says %v, %v", st.GetInfo(), err)
	}
}
