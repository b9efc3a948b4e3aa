package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/cri/container"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// firstID is where the ids of these tests' pods begin on the host.
const firstID = 1 << 20

func ownIDs(length uint32) *runtimeapi.UserNamespace {
	m := []*runtimeapi.IDMapping{{HostId: firstID, ContainerId: 0, Length: length}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m, Gids: m}
}

// usernsNode is a node whose directories the root of a pod with ids of its own can pass through.
func usernsNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	for dir := filepath.Dir(n.cfg.RootDir); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// usernsPod makes a sandbox with ids of its own, and returns what its containers have to say of that.
func (n *node) usernsPod(t *testing.T, name string, opts *runtimeapi.NamespaceOption, change func(*runtimeapi.PodSandboxConfig)) (string, func(*runtimeapi.ContainerConfig)) {
	t.Helper()
	pod, _ := n.pod(t, name, func(cfg *runtimeapi.PodSandboxConfig) {
		cfg.Linux.SecurityContext.NamespaceOptions = opts
		if change != nil {
			change(cfg)
		}
	})
	return pod, func(cfg *runtimeapi.ContainerConfig) { securityOf(cfg).NamespaceOptions = opts }
}

func TestUserNamespace(t *testing.T) {
	n := usernsNode(t)
	opts := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: ownIDs(65536)}
	pod, c := n.usernsPod(t, "web", opts, func(cfg *runtimeapi.PodSandboxConfig) {
		cfg.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "20000 30000", "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "20"}
	})
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	ids := opts.UsernsOptions
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		c(cfg)
		securityOf(cfg).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		cfg.Mounts = []*runtimeapi.Mount{
			{ContainerPath: "/mapped", HostPath: dir, UidMappings: ids.Uids, GidMappings: ids.Gids},
			{ContainerPath: "/plain", HostPath: dir},
			{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true, UidMappings: ids.Uids, GidMappings: ids.Gids},
			{ContainerPath: "/sub", Image: &runtimeapi.ImageSpec{Image: boxImage}, Readonly: true, ImageSubPath: "data"},
		}
	}, "sh", "-c", "trap 'exit 7' TERM; echo out > /dev/stdout; echo err > /dev/stderr; while :; do sleep 0.05; done")
	// By then it is executed, and has its trap.
	eventually(t, func() bool { return strings.Contains(logText(t, statusOf(t, n.Server, id).LogPath), "err\n") })
	for script, want := range map[string]string{
		"id -u":            "0",
		"stat -c %u:%g /":  "0:0",
		"stat -c %u /data": "0",
		"cat /data/file; echo new > /data/file && cat /data/file && stat -c %u /data/file": "from the image\nnew\n0",
		"touch /data/own && chown 1000:1000 /data/own && stat -c %u:%g /data/own":          "1000:1000",
		"cat /proc/sys/net/ipv4/ip_local_port_range":                                       "20000\t30000",
		"cat /proc/sys/kernel/shm_rmid_forced /proc/sys/fs/mqueue/msg_max":                 "1\n20",
		"stat -c %a:%u /dev/shm":                                                    "1777:0",
		"echo x > /dev/shm/f && stat -c %u /dev/shm/f":                              "0",
		"echo '# x' >> /etc/hosts && stat -c %u /etc/hosts":                         "0",
		"stat -c %u /etc/resolv.conf /etc/hostname":                                 "0\n0",
		"hostname other && hostname":                                                "other",
		"ip link set lo down && ip link set lo up && echo ok":                       "ok",
		"echo 1 > /proc/sys/net/ipv4/ip_forward; cat /proc/sys/net/ipv4/ip_forward": "1",
		"mkdir -p /m && mount -t tmpfs x /m && umount /m && echo ok":                "ok",
		"ls -d /dev/mqueue && grep -c ' /dev/mqueue ' /proc/self/mountinfo":         "/dev/mqueue\n1",
		"touch /sys/x 2>/dev/null || echo ro":                                       "ro",
		"cat /image/data/file && stat -c %u /image/data/file":                       "from the image\n0",
		"cat /sub/file && stat -c %u /sub/file":                                     "from the image\n0",
		"touch /image/x 2>/dev/null || echo ro":                                     "ro",
		"touch /mapped/a && stat -c %u /mapped/a /plain/a":                          "0\n65534",
		"touch /plain/b && stat -c %u /plain/b":                                     "0",
		"echo hi > /dev/stdout":                                                     "hi",
		"cat /proc/1/comm":                                                          "sh",
		"sysctl -w kernel.panic=5 >/dev/null 2>&1 || echo denied":                   "denied",
		"dmesg >/dev/null 2>&1; mknod /x c 1 3 2>/dev/null || echo denied":          "denied",
	} {
		if got := n.sh(t, id, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	for file, want := range map[string]uint32{filepath.Join(dir, "a"): 0, filepath.Join(dir, "b"): firstID} {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || st.Uid != want || st.Gid != want {
			t.Errorf("%s: got %d:%d, %v, want %d", file, st.Uid, st.Gid, err, want)
		}
	}
	rec := n.containerRecord(t, id)
	for _, kind := range []string{"uid_map", "gid_map"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", rec.Pid, kind))
		if got := strings.Join(strings.Fields(string(b)), " "); err != nil || got != fmt.Sprintf("0 %d 65536", firstID) {
			t.Errorf("%s: got %q, %v", kind, got, err)
		}
	}
	n.ownedByPod(t, rec.Pid, "net", "ipc", "uts", "pid", "mnt")
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(t, n.Server, id); st.ExitCode != 7 {
		t.Errorf("got %v", st)
	} else if got := logText(t, st.LogPath); got != "out\nerr\n" {
		t.Errorf("log: got %q", got)
	}
}

func (n *node) containerRecord(t *testing.T, id string) container.Record {
	t.Helper()
	c, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	return c.Record()
}

// ownedByPod proves that a process's namespaces belong to its user namespace, which is not the host's.
func (n *node) ownedByPod(t *testing.T, pid int, kinds ...string) {
	t.Helper()
	var own, host unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/user", pid), &own); err != nil {
		t.Fatal(err)
	}
	if err := unix.Stat("/proc/self/ns/user", &host); err != nil || host.Ino == own.Ino {
		t.Fatalf("no user namespace of its own (%v)", err)
	}
	for _, kind := range kinds {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Ino != own.Ino {
			t.Errorf("%s namespace belongs to another user namespace (%v)", kind, err)
		}
		unix.Close(fd)
	}
}

func TestUserNamespaceUsersAndExecs(t *testing.T) {
	n := usernsNode(t)
	opts := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD, UsernsOptions: ownIDs(65536)}
	pod, c := n.usernsPod(t, "a", opts, nil)
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		c(cfg)
		s := securityOf(cfg)
		s.RunAsUser, s.RunAsGroup, s.NoNewPrivs = &runtimeapi.Int64Value{Value: 1000}, &runtimeapi.Int64Value{Value: 5}, true
		s.SupplementalGroups = []int64{8}
		s.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}, "sh", "-c", "echo out > /dev/stdout; exec sleep 4741")
	b := n.run(t, pod, "b", c, "sleep", "4742")
	for script, want := range map[string]string{
		"id -u; id -g":                            "1000\n5",
		"id -G":                                   "5 8 2000",
		"echo hi > /dev/stdout":                   "hi",
		"grep CapEff /proc/self/status":           "CapEff:\t0000000000000000",
		"grep -w Seccomp: /proc/self/status":      "Seccomp:\t2",
		"readlink /proc/self/ns/user | grep -c .": "1",
	} {
		if got := n.sh(t, id, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	eventually(t, func() bool { return logText(t, statusOf(t, n.Server, id).LogPath) == "out\n" })
	eventually(t, func() bool { return strings.Contains(n.sh(t, b, "ps"), "4741") })
	n.ownedByPod(t, n.containerRecord(t, b).Pid, "pid")

	// Another server, as after a crash, goes on with both.
	if err := n.Server.Close(); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if got := n.sh(t, b, "id -u; stat -c %u /data"); got != "0\n0" {
		t.Errorf("after a restart: got %q", got)
	}
	d := n.run(t, pod, "later", c, "sleep", "1000")
	if got := n.sh(t, d, "cat /proc/self/uid_map | tr -s ' '"); got != fmt.Sprintf("0 %d 65536", firstID) {
		t.Errorf("a container of later: got %q", got)
	}
}

func TestSmallUserNamespace(t *testing.T) {
	n := usernsNode(t)
	opts := &runtimeapi.NamespaceOption{UsernsOptions: ownIDs(1)} // a shared PID namespace too
	pod, c := n.usernsPod(t, "a", opts, nil)
	id := n.run(t, pod, "main", c, "sleep", "1000")
	if got := n.sh(t, id, "id -u; echo x > /dev/shm/f; tty -s; cat /dev/shm/f"); got != "0\nx" {
		t.Errorf("got %q", got)
	}
}

func TestUserNamespaceInTheHostsNetwork(t *testing.T) {
	n := usernsNode(t)
	opts := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: ownIDs(65536)}
	pod, c := n.usernsPod(t, "a", opts, func(cfg *runtimeapi.PodSandboxConfig) { cfg.Hostname = "" })
	id := n.run(t, pod, "main", c, "sleep", "1000")
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if got := n.sh(t, id, "id -u; readlink /proc/self/ns/net; test -d /sys/class/net/lo && echo sys; touch /sys/x 2>/dev/null || echo ro"); got != "0\n"+host+"\nsys\nro" {
		t.Errorf("got %q", got)
	}
}

func TestUserNamespaceRefused(t *testing.T) {
	n := usernsNode(t)
	for name, change := range map[string]func(*runtimeapi.UserNamespace){
		"two mappings": func(u *runtimeapi.UserNamespace) { u.Uids = append(u.Uids, u.Uids[0]) },
		"no gids":      func(u *runtimeapi.UserNamespace) { u.Gids = nil },
		"no length":    func(u *runtimeapi.UserNamespace) { u.Uids = []*runtimeapi.IDMapping{{HostId: 5}} },
		"root unmapped": func(u *runtimeapi.UserNamespace) {
			u.Uids = []*runtimeapi.IDMapping{{HostId: firstID, ContainerId: 1, Length: 10}}
		},
		"too far":            func(u *runtimeapi.UserNamespace) { u.Uids = []*runtimeapi.IDMapping{{HostId: 1<<32 - 2, Length: 10}} },
		"mode container":     func(u *runtimeapi.UserNamespace) { u.Mode = runtimeapi.NamespaceMode_CONTAINER },
		"node with mappings": func(u *runtimeapi.UserNamespace) { u.Mode = runtimeapi.NamespaceMode_NODE },
	} {
		u := ownIDs(65536)
		change(u)
		cfg := n.podConfig("a")
		cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{}
		cfg.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{UsernsOptions: u}
		if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
	opts := &runtimeapi.NamespaceOption{UsernsOptions: ownIDs(65536)}
	pod, _ := n.usernsPod(t, "a", opts, nil)
	for name, u := range map[string]*runtimeapi.UserNamespace{"none": nil, "another": ownIDs(100)} {
		_, err := n.tryRun(pod, "main", func(cfg *runtimeapi.ContainerConfig) {
			securityOf(cfg).NamespaceOptions = &runtimeapi.NamespaceOption{UsernsOptions: u}
		}, "sleep", "1000")
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("container with %s: got %v", name, err)
		}
	}
}

func TestFeatures(t *testing.T) {
	n := usernsNode(t)
	st, err := n.Status(t.Context(), &runtimeapi.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range st.RuntimeHandlers {
		if h.Name == "" && (!h.Features.UserNamespaces || !h.Features.RecursiveReadOnlyMounts) {
			t.Errorf("got %v", h)
		}
	}
	// A directory on the way that only root may pass.
	if err := os.Chmod(filepath.Dir(n.cfg.RunDir), 0o700); err != nil {
		t.Fatal(err)
	}
	if n.core.host.Features().UserNamespaces {
		t.Error("user namespaces are offered where their pods cannot reach their root file system")
	}
	cfg := n.podConfig("a")
	cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: ownIDs(65536)}}
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "o+x") {
		t.Errorf("got %v", err)
	}
}
