package cri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-node/berth/cri/stdio"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func sleeper(cfg *runtimeapi.ContainerConfig) { cfg.Command = []string{"sleep", "1000"} }

func securityOf(cfg *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
	return cfg.Linux.SecurityContext
}

func TestPodOnTheRealKernel(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "web", func(cfg *runtimeapi.PodSandboxConfig) {
		cfg.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"9.9.9.9"}, Searches: []string{"x.test"}}
		cfg.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "20000 30000"}
	})
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Envs = []*runtimeapi.KeyValue{{Key: "FROM_POD", Value: []byte("2")}}
		cfg.Linux.Resources.MemoryLimitInBytes = 64 << 20
	}, "sh", "-c", "trap 'exit 7' TERM; echo out; echo err >&2; while :; do sleep 0.05; done")
	// By then it is executed, and has its trap.
	eventually(t, func() bool { return strings.Contains(logText(t, statusOf(t, n.Server, id).LogPath), "err\n") })
	for script, want := range map[string]string{
		"hostname":                                          "web",
		"cat /etc/hostname":                                 "web",
		"cat /etc/resolv.conf":                              "search x.test\nnameserver 9.9.9.9",
		"echo $FROM_IMAGE$FROM_POD$HOSTNAME":                "12web",
		"cat /proc/sys/net/ipv4/ip_local_port_range":        "20000\t30000",
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
		"id -u":                               "0",
		"pwd":                                 "/",
		"cat /data/file":                      "from the image",
		"cat /proc/1/comm":                    "sh",
		"stat -c %a /dev/shm":                 "1777",
		"touch /sys/x 2>/dev/null || echo ro": "ro",
	} {
		if got := n.sh(t, id, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || !strings.HasPrefix(st.Status.Network.Ip, "10.199.") {
		t.Errorf("got %v, %v", st, err)
	}
	stats, err := n.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
	if err != nil || stats.Stats.Memory.UsageBytes.Value == 0 || stats.Stats.Memory.AvailableBytes.Value == 0 {
		t.Errorf("stats: got %v, %v", stats, err)
	}
	ps, err := n.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	if err != nil || ps.Stats.Linux.Network.GetDefaultInterface().GetName() != "eth0" || ps.Stats.Linux.Io.GetTimestamp() == 0 || len(ps.Stats.Linux.Containers) != 1 {
		t.Errorf("pod stats: got %v, %v", ps, err)
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	cs := statusOf(t, n.Server, id)
	if cs.ExitCode != 7 || cs.Reason != "Error" {
		t.Errorf("got %v", cs)
	}
	if got := logText(t, cs.LogPath); got != "out\nerr\n" {
		t.Errorf("log: got %q", got)
	}
	if l := n.leaks(t); hasPrefix(l, "mount "+n.core.host.Paths.Container(id).Rootfs()) || hasPrefix(l, "cgroup "+n.cfg.CgroupRoot+"/pod-web/"+id) {
		t.Errorf("an exited container has %q", l)
	}
}

func TestMissingCommand(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id, err := n.tryRun(pod, "main", nil, "nosuchthing")
	if err == nil || !strings.Contains(err.Error(), `exec: "nosuchthing": executable file not found in $PATH`) {
		t.Errorf("got %v", err)
	}
	if st := statusOf(t, n.Server, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED || st.ExitCode != 128 || st.Reason != "StartError" {
		t.Errorf("got %v", st)
	}
	id = n.run(t, pod, "other", nil, "sleep", "1000")
	n.sh(t, id, "echo x > /tmp/plain; echo x > /tmp/odd; chmod 755 /tmp/odd; printf '#!/no/such/shell\\n' > /tmp/script; chmod 755 /tmp/script")
	for cmd, want := range map[string]stdio.Unexecuted{
		"nosuchthing":      {Code: 127, Message: `exec: "nosuchthing": executable file not found in $PATH`},
		"/no/such":         {Code: 127, Message: `exec: "/no/such": stat /no/such: no such file or directory`},
		"/tmp/script":      {Code: 127, Message: "no such file or directory"},
		"/tmp/plain":       {Code: 126, Message: "permission denied"},
		"/tmp":             {Code: 126, Message: "is a directory"},
		"/tmp/odd":         {Code: 126, Message: "exec format error"},
		"/tmp/plain/below": {Code: 126, Message: "not a directory"},
	} {
		// To who asks for the output as a whole it is an error, as in containerd's CRI: kubelet throws such an answer
		// of a probe away.
		_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{cmd}})
		if got, ok := stdio.NotExecuted(err, []string{cmd}); !ok || got.Code != want.Code || !strings.Contains(got.Message, want.Message) {
			t.Errorf("exec of %s: got %+v, %v", cmd, got, err)
		}
	}
	// What a command says for itself is its own.
	r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo 'exec: \"sh\": permission denied'; exit 3"}})
	if err != nil || r.ExitCode != 3 {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestExecSyncTimeoutKillsTheGroup(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	_, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{
		ContainerId: id, Cmd: []string{"sh", "-c", "sleep 4711 & sleep 4712"}, Timeout: 1,
	})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	eventually(t, func() bool { return !strings.Contains(n.sh(t, id, "ps"), "471") })
	r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo o; echo e >&2; exit 5"}})
	if err != nil || r.ExitCode != 5 || string(r.Stdout) != "o\n" || string(r.Stderr) != "e\n" {
		t.Errorf("got %v, %v", r, err)
	}
	r, err = n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "yes | head -c 20000000"}})
	if err != nil || len(r.Stdout) != stdio.MaxOutput || r.ExitCode != 0 {
		t.Errorf("long output: %d bytes, code %d, %v", len(r.GetStdout()), r.GetExitCode(), err)
	}
	r, err = n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "yes | head -c 20000000 >&2 & yes | head -c 20000000; wait"}})
	if err != nil || len(r.Stdout) != stdio.MaxOutput/2 || len(r.Stderr) != stdio.MaxOutput/2 {
		t.Errorf("long output on both streams: %d and %d bytes, %v", len(r.GetStdout()), len(r.GetStderr()), err)
	}
	r, err = n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo before; sleep 1000 &"}, Timeout: 60})
	if err != nil || string(r.Stdout) != "before\n" {
		t.Errorf("a process left behind: got %v, %v", r, err)
	}
}

func TestOOMKilled(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) { cfg.Linux.Resources.MemoryLimitInBytes = 16 << 20 },
		"sh", "-c", "dd if=/dev/zero of=/dev/null bs=64M count=1")
	if st := waitExited(t, n.Server, id); st.Reason != "OOMKilled" && st.ExitCode == 0 {
		t.Errorf("got %v", st)
	}
	id = n.run(t, pod, "direct", func(cfg *runtimeapi.ContainerConfig) { cfg.Linux.Resources.MemoryLimitInBytes = 16 << 20 },
		"dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1")
	if st := waitExited(t, n.Server, id); st.Reason != "OOMKilled" || st.ExitCode != 137 {
		t.Errorf("got %v", st)
	}
}

func TestUsers(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	uid := func(u int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: u} }
	for i, tt := range []struct {
		change func(*runtimeapi.LinuxContainerSecurityContext)
		want   string
	}{
		{func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUser = uid(1000) }, "uid=1000(app) gid=1000(app) groups=1000(app),2000(extra)"},
		{func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "app"; s.RunAsGroup = uid(5) }, "uid=1000(app) gid=5 groups=5,2000(extra)"},
		{func(s *runtimeapi.LinuxContainerSecurityContext) { s.RunAsUsername = "app:extra" }, "uid=1000(app) gid=2000(extra) groups=2000(extra)"},
		{func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.SupplementalGroups = uid(1000), []int64{2000, 9}
			s.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy_Strict
		}, "uid=1000(app) gid=1000(app) groups=9,1000(app),2000(extra)"},
		{func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser = uid(77)
			s.SupplementalGroups = []int64{8}
		}, "uid=77 gid=0(root) groups=0(root),8"},
		{func(s *runtimeapi.LinuxContainerSecurityContext) {
			s.RunAsUser, s.SupplementalGroupsPolicy = uid(1000), runtimeapi.SupplementalGroupsPolicy_Strict
		}, "uid=1000(app) gid=1000(app) groups=1000(app)"},
	} {
		id := n.run(t, pod, "c"+string(rune('a'+i)), func(cfg *runtimeapi.ContainerConfig) { tt.change(securityOf(cfg)) }, "sleep", "1000")
		if got := n.sh(t, id, "id"); got != tt.want {
			t.Errorf("exec: got %q, want %q", got, tt.want)
		}
		if got := n.output(t, pod, "d"+string(rune('a'+i)), func(cfg *runtimeapi.ContainerConfig) { tt.change(securityOf(cfg)) }, "id"); strings.TrimSpace(got) != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestConfinement(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) { cfg.Linux.SecurityContext.Privileged = true })
	runs := 0
	try := func(script string, change func(*runtimeapi.ContainerConfig)) string {
		runs++
		return strings.TrimSpace(n.output(t, pod, "c"+string(rune('a'+runs)), change, "sh", "-c", script))
	}
	if got := try("touch /x 2>/dev/null && echo rw || echo ro", func(c *runtimeapi.ContainerConfig) { securityOf(c).ReadonlyRootfs = true }); got != "ro" {
		t.Errorf("read-only root: got %q", got)
	}
	caps := func(add, drop []string) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) {
			securityOf(c).Capabilities = &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop}
		}
	}
	const eff = "grep CapEff /proc/self/status"
	if got := try(eff, nil); got != "CapEff:\t00000000a80425fb" {
		t.Errorf("default capabilities: got %q", got)
	}
	if got := try(eff, caps(nil, []string{"ALL"})); got != "CapEff:\t0000000000000000" {
		t.Errorf("no capabilities: got %q", got)
	}
	if got := try(eff, caps([]string{"NET_ADMIN"}, []string{"ALL"})); got != "CapEff:\t0000000000001000" {
		t.Errorf("one capability: got %q", got)
	}
	if got := try("grep -c . /proc/version; (echo 1 > /proc/sys/net/ipv4/ip_forward) 2>&1 | grep -c Read-only", func(c *runtimeapi.ContainerConfig) {
		securityOf(c).MaskedPaths, securityOf(c).ReadonlyPaths = []string{"/proc/version"}, []string{"/proc/sys"}
	}); got != "0\n1" {
		t.Errorf("masked and read-only paths: got %q", got)
	}
	profile := func(typ runtimeapi.SecurityProfile_ProfileType, ref string) func(*runtimeapi.ContainerConfig) {
		return func(c *runtimeapi.ContainerConfig) {
			securityOf(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: typ, LocalhostRef: ref}
		}
	}
	const filter = "grep -w Seccomp: /proc/self/status"
	if got := try(filter, profile(runtimeapi.SecurityProfile_RuntimeDefault, "")); got != "Seccomp:\t2" {
		t.Errorf("default profile: got %q", got)
	}
	if got := try(filter, profile(runtimeapi.SecurityProfile_Unconfined, "")); got != "Seccomp:\t0" {
		t.Errorf("unconfined: got %q", got)
	}
	own := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(own, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := try("mkdir /x 2>/dev/null && echo made || echo denied", profile(runtimeapi.SecurityProfile_Localhost, own)); got != "denied" {
		t.Errorf("localhost profile: got %q", got)
	}
	id := n.run(t, pod, "exec", profile(runtimeapi.SecurityProfile_Localhost, own), "sleep", "1000")
	if got := n.sh(t, id, "mkdir /x 2>/dev/null && echo made || echo denied"); got != "denied" {
		t.Errorf("localhost profile in an exec: got %q", got)
	}
	if got := try("grep NoNewPrivs /proc/self/status", func(c *runtimeapi.ContainerConfig) { securityOf(c).NoNewPrivs = true }); got != "NoNewPrivs:\t1" {
		t.Errorf("no new privileges: got %q", got)
	}
	if got := try("mkdir /tmp/m && mount -t tmpfs x /tmp/m && test -e /dev/kmsg && touch /sys/kernel/mm/transparent_hugepage/enabled && echo ok", func(c *runtimeapi.ContainerConfig) {
		securityOf(c).Privileged = true
	}); got != "ok" {
		t.Errorf("privileged: got %q", got)
	}
	if got := try("mkdir /tmp/m; mount -t tmpfs x /tmp/m 2>/dev/null || echo denied", nil); got != "denied" {
		t.Errorf("unprivileged mount: got %q", got)
	}
	if got := try("echo > /dev/full 2>/dev/null || echo ok; head -c1 /dev/zero | stat -c %s /dev/null; dd if=/dev/kmsg of=/dev/null count=1 2>/dev/null || echo none", func(c *runtimeapi.ContainerConfig) {
		c.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/mynull", Permissions: "rwm"}}
	}); got != "ok\n0\nnone" {
		t.Errorf("devices: got %q", got)
	}
}

func TestNamespacesOnTheRealKernel(t *testing.T) {
	n := newNode(t)
	host := func(kind string) string {
		s, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	opts := func(net, pid, ipc runtimeapi.NamespaceMode) *runtimeapi.NamespaceOption {
		return &runtimeapi.NamespaceOption{Network: net, Pid: pid, Ipc: ipc}
	}
	const node, podNS, own = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER
	makePod := func(name string, o *runtimeapi.NamespaceOption) (string, func(*runtimeapi.ContainerConfig)) {
		pod, _ := n.pod(t, name, func(cfg *runtimeapi.PodSandboxConfig) {
			cfg.Linux.SecurityContext.NamespaceOptions = o
			cfg.Hostname = ""
		})
		return pod, func(cfg *runtimeapi.ContainerConfig) { securityOf(cfg).NamespaceOptions = o }
	}
	const all = "for n in net ipc uts pid; do readlink /proc/self/ns/$n; done"

	pod, c := makePod("host", opts(node, node, node))
	id := n.run(t, pod, "c", c, "sleep", "1000")
	want := strings.Join([]string{host("net"), host("ipc"), host("uts"), host("pid")}, "\n")
	if got := n.sh(t, id, all); got != want {
		t.Errorf("host's: got %q, want %q", got, want)
	}
	pid := int(0)
	if cc, err := n.core.ctrs.Table.ByID.Get(id); err == nil {
		pid = cc.Record().Pid
	}
	// A start is over when the program is about to be executed.
	eventually(t, func() bool { return n.sh(t, id, "cat /proc/"+itoa(pid)+"/comm") == "sleep" })
	// What it leaves behind in the host's PID namespace ends with it.
	n.sh(t, id, "sleep 4713 >/dev/null 2>&1 &")
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !running(t, "4713") })

	pod, c = makePod("shared", opts(podNS, podNS, podNS))
	a, b := n.run(t, pod, "a", c, "sleep", "4714"), n.run(t, pod, "b", c, "sleep", "4715")
	if x, y := n.sh(t, a, all), n.sh(t, b, all); x != y || strings.Contains(x, host("pid")) {
		t.Errorf("shared: got %q and %q", x, y)
	}
	eventually(t, func() bool { return strings.Contains(n.sh(t, a, "ps"), "4715") })
	n.sh(t, a, "echo x > /dev/shm/f")
	if got := n.sh(t, b, "cat /dev/shm/f"); got != "x" {
		t.Errorf("shared memory: got %q", got)
	}

	pod, c = makePod("own", opts(podNS, own, podNS))
	a, b = n.run(t, pod, "a", c, "sleep", "1000"), n.run(t, pod, "b", c, "sleep", "1000")
	if x, y := n.sh(t, a, "readlink /proc/self/ns/pid"), n.sh(t, b, "readlink /proc/self/ns/pid"); x == y {
		t.Errorf("own: got %q and %q", x, y)
	}
	target := n.run(t, pod, "debug", func(cfg *runtimeapi.ContainerConfig) {
		c(cfg)
		securityOf(cfg).NamespaceOptions = &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: a}
	}, "sleep", "1000")
	if x, y := n.sh(t, a, "readlink /proc/self/ns/pid"), n.sh(t, target, "readlink /proc/self/ns/pid"); x != y {
		t.Errorf("target: got %q and %q", x, y)
	}
}

func TestMountsOnTheRealKernel(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/rw", HostPath: dir},
			{ContainerPath: "/ro", HostPath: dir, Readonly: true},
			{ContainerPath: "/rro", HostPath: dir, Readonly: true, RecursiveReadOnly: true},
			{ContainerPath: "/made", HostPath: filepath.Join(dir, "made/here")},
			{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true},
			{ContainerPath: "/sub", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true, ImageSubPath: "data"},
			{ContainerPath: "/noexec", HostPath: dir, MountOptions: []string{"noexec"}},
		}
	}, "sleep", "1000")
	for script, want := range map[string]string{
		"cat /rw/f /ro/f /rro/f":                "host\nhost\nhost",
		"touch /rw/x && echo ok":                "ok",
		"touch /ro/x 2>/dev/null || echo ro":    "ro",
		"touch /rro/x 2>/dev/null || echo ro":   "ro",
		"cat /image/data/file":                  "from the image",
		"cat /sub/file":                         "from the image",
		"touch /image/x 2>/dev/null || echo ro": "ro",
		"grep -c noexec /proc/self/mountinfo >/dev/null && grep ' /noexec ' /proc/self/mountinfo | grep -c noexec": "1",
	} {
		if got := n.sh(t, id, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	if _, err := n.tryRun(pod, "bad", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true, ImageSubPath: "nope"}}
	}, "true"); err == nil {
		t.Error("a missing path in an image was taken")
	}
	if _, err := n.tryRun(pod, "bad", func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/i", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true, ImageSubPath: "../../../etc"}}
	}, "true"); err == nil {
		t.Error("a path out of an image was taken")
	}
}

func TestPodsReachEachOther(t *testing.T) {
	n := newNode(t)
	a, _ := n.pod(t, "a", nil)
	b, _ := n.pod(t, "b", nil)
	n.run(t, a, "main", nil, "sh", "-c", "while :; do echo hello | nc -l -p 80; done")
	ip := n.core.pods.Table.List(nil)[1]
	st, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: ip.Id})
	if err != nil {
		t.Fatal(err)
	}
	client := n.run(t, b, "main", nil, "sleep", "1000")
	eventually(t, func() bool {
		r, err := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: client, Cmd: []string{"sh", "-c", "nc -w 2 " + st.Status.Network.Ip + " 80 </dev/null"}, Timeout: 10})
		return err == nil && string(r.Stdout) == "hello\n"
	})
	eventually(t, func() bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(st.Status.Network.Ip, "80"), time.Second)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func TestRestartedServer(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	stays := n.run(t, pod, "stays", nil, "sleep", "1000")
	ends := n.run(t, pod, "ends", nil, "sh", "-c", "while ! test -e /tmp/go; do sleep 0.02; done; echo last words; exit 3")
	created, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: func() *runtimeapi.ContainerConfig {
		c := containerConfig("created")
		c.Image.Image = boxImage
		sleeper(c)
		return c
	}()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.core.ctrs.Table.ByID.Get(ends)
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Record().Pid
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/"+itoa(pid)+"/root/tmp/go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := os.Stat("/proc/" + itoa(pid)); return err != nil })
	n.open(t)
	if st := waitExited(t, n.Server, ends); st.ExitCode != 3 {
		t.Errorf("got %v", st)
	}
	if got := logText(t, statusOf(t, n.Server, ends).LogPath); got != "last words\n" {
		t.Errorf("log: got %q", got)
	}
	if st := statusOf(t, n.Server, stays); st.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("got %v", st)
	}
	if got := n.sh(t, stays, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
	startContainer(t, n.Server, created.ContainerId)
	n.sh(t, created.ContainerId, "true")

	// And once more, with the keeper killed meanwhile.
	keeper := n.core.pods.Table.List(nil)[0].Id
	sb, err := n.core.pods.Table.ByID.Get(keeper)
	if err != nil {
		t.Fatal(err)
	}
	kpid := sb.Record().Pid
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	kill(t, kpid)
	n.open(t)
	if got := podState(t, n.Server, pod); got != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("got %v", got)
	}
	if st := statusOf(t, n.Server, stays); st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("got %v", st)
	}
	if err := removePod(t, n.Server, pod); err != nil {
		t.Fatal(err)
	}
	n.checkClean2(t)
}

func TestKilledKeeper(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sleep", "1000")
	sb, err := n.core.pods.Table.ByID.Get(pod)
	if err != nil {
		t.Fatal(err)
	}
	kill(t, sb.Record().Pid)
	if st := waitExited(t, n.Server, id); st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("got %v", st)
	}
	eventually(t, func() bool { return podState(t, n.Server, pod) == runtimeapi.PodSandboxState_SANDBOX_NOTREADY })
	if err := removePod(t, n.Server, pod); err != nil {
		t.Fatal(err)
	}
	n.checkClean2(t)
}

// checkClean2 is checkClean while the server still runs.
func (n *node) checkClean2(t testing.TB) {
	t.Helper()
	if l := n.leaks(t); len(l) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(l, "\n"))
	}
}

func TestManyPodsAtOnce(t *testing.T) {
	n := newNode(t)
	type result struct {
		pod string
		err error
	}
	results := make(chan result)
	const pods = 20
	for i := range pods {
		go func() {
			cfg := podConfig("p" + itoa(i))
			cfg.Linux.CgroupParent = n.cfg.CgroupRoot + "/p" + itoa(i)
			r, err := n.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
			if err == nil {
				_, err = n.tryRun(r.PodSandboxId, "main", func(c *runtimeapi.ContainerConfig) { c.LogPath = "" }, "sleep", "1000")
			}
			results <- result{r.GetPodSandboxId(), err}
		}()
	}
	var ids []string
	for range pods {
		r := <-results
		if r.err != nil {
			t.Error(r.err)
		}
		ids = append(ids, r.pod)
	}
	for _, id := range ids {
		go func() { results <- result{id, removePod(t, n.Server, id)} }()
	}
	for range pods {
		if r := <-results; r.err != nil {
			t.Error(r.err)
		}
	}
	for i := range pods {
		_ = os.Remove("/sys/fs/cgroup/memory" + n.cfg.CgroupRoot + "/p" + itoa(i))
	}
}
