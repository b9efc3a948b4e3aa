package cri

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/image/imagetest"
)

// node is a real Server on directories, a bridge and a cgroup of its own.
type node struct {
	*Server
	*ImageServer
	cfg Config
}

// built are directories of what is built once, which go when all tests have run.
var built []string

var buildHelper = sync.OnceValues(func() (string, error) {
	if p := os.Getenv("BERTH_TEST_HELPER"); p != "" {
		return p, nil
	}
	dir, err := os.MkdirTemp("", "berth-helper")
	if err != nil {
		return "", err
	}
	built = append(built, dir)
	path := filepath.Join(dir, "berth-helper")
	// As the Makefile builds it, so that what it is made of is compiled once.
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "seccomp,osusergo,netgo", "-ldflags", "-s -w", "-o", path, "./helper")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func nodeConfig(t testing.TB, dir string, pid int) Config {
	t.Helper()
	helper, err := buildHelper()
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		RootDir: filepath.Join(dir, "root"), RunDir: filepath.Join(dir, "run"), LogDir: filepath.Join(dir, "log"),
		CgroupRoot: fmt.Sprintf("/berth-test-%d", pid), Helper: helper, BridgeName: fmt.Sprintf("bt%d", pid%1000000),
		PodCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 199, byte(pid), 0}), 24),
	}
}

// newNode opens a Server with the test image in it, and proves in the end that it left nothing behind.
func newNode(t testing.TB) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes namespaces, mounts and cgroups")
	}
	n := &node{cfg: nodeConfig(t, t.TempDir(), os.Getpid())}
	t.Cleanup(func() { n.checkClean(t) })
	n.open(t)
	t.Cleanup(func() { n.purge(t) })
	if _, err := n.Local().Images().Import(t.Context(), bytes.NewReader(testImage(t)), nil); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) open(t testing.TB) {
	t.Helper()
	var err error
	if n.Server, err = New(context.Background(), n.cfg); err != nil {
		t.Fatal(err)
	}
	n.ImageServer = n.Server.ImageServer()
}

func (n *node) purge(t testing.TB) {
	t.Helper()
	if err := n.Local().Purge(context.Background()); err != nil {
		t.Error(err)
	}
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(context.Background(), n.cfg.CgroupRoot); err != nil {
		t.Error(err)
	}
}

// leaks lists what is in the kernel of this node.
func (n *node) leaks(t testing.TB) []string {
	t.Helper()
	var out []string
	dir := filepath.Dir(n.cfg.RootDir)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		at := strings.Fields(line)[4]
		// Some directories are tmpfs of their own, until Purge.
		if strings.HasPrefix(at, dir) && filepath.Dir(at) != n.cfg.RunDir {
			out = append(out, "mount "+at)
		}
	}
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	out = append(out, groupsBelow(t, h, n.cfg.CgroupRoot)...)
	procs, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), n.cfg.CgroupRoot+"/") {
			if stat, err := os.ReadFile(filepath.Join(filepath.Dir(p), "stat")); err != nil || ending(stat) {
				continue // dead, or out of its group; who has become its parent, process 1, has to reap it
			}
			comm, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "comm"))
			out = append(out, "process "+filepath.Base(filepath.Dir(p))+" "+strings.TrimSpace(string(comm)))
		}
	}
	for _, d := range []string{"netns", "sandboxes", "containers", "libcontainer", "runtimes/crun", "runtimes/runc"} {
		entries, _ := os.ReadDir(filepath.Join(n.cfg.RunDir, d))
		for _, e := range entries {
			if e.Name() != ".seccomp" { // compiled filters, kept for later containers
				out = append(out, d+" "+e.Name())
			}
		}
	}
	return out
}

func groupsBelow(t testing.TB, h *cgroups.Hierarchy, path string) []string {
	t.Helper()
	names, err := h.Children(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range names {
		p := path + "/" + name
		if len(name) == 64 { // the others are the pods' parents, which are not the server's to remove
			out = append(out, "cgroup "+p)
		}
		out = append(out, groupsBelow(t, h, p)...)
	}
	return out
}

func (n *node) checkClean(t testing.TB) {
	t.Helper()
	n.checkClean2(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), n.cfg.RunDir) {
		t.Errorf("left behind: mounts in %s", n.cfg.RunDir)
	}
	if _, err := os.Stat("/sys/class/net/" + n.cfg.BridgeName); err == nil {
		t.Errorf("left behind: bridge %s", n.cfg.BridgeName)
	}
}

// testImage is an image with a static busybox and some users.
func testImage(t testing.TB) []byte {
	t.Helper()
	return boxWith(t, boxImage, ocispec.ImageConfig{Cmd: []string{"/bin/sh"}, Env: []string{"FROM_IMAGE=1"}})
}

// boxWith is the test image under another name, with another configuration and with more files.
func boxWith(t testing.TB, name string, c ocispec.ImageConfig, more ...imagetest.File) []byte {
	t.Helper()
	busybox, err := os.ReadFile("/usr/bin/busybox")
	if err != nil {
		t.Fatalf("the test image is made from the package busybox-static: %v", err)
	}
	files := []imagetest.File{
		{Name: "bin/"},
		{Name: "bin/busybox", Body: string(busybox), Mode: 0o755},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "etc/"},
		{Name: "etc/passwd", Body: "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"},
		{Name: "etc/group", Body: "root:x:0:\napp:x:1000:\nextra:x:2000:app\n"},
		{Name: "data/"},
		{Name: "data/file", Body: "from the image\n"},
	}
	for _, a := range []string{"sh", "sleep", "cat", "echo", "id", "ls", "env", "hostname", "mount", "touch", "nc", "head", "dd", "stat", "pwd", "readlink", "ps", "wget", "grep", "mkdir", "mkfifo", "kill", "true", "false", "yes", "seq", "stty", "ip", "nslookup", "ulimit", "trap"} {
		files = append(files, imagetest.File{Name: "bin/" + a, Type: '2', Link: "busybox"})
	}
	layers := [][]imagetest.File{files}
	if len(more) > 0 {
		layers = append(layers, more)
	}
	return imagetest.Build(imagetest.Spec{Name: name, Layers: layers, Config: c}).DockerArchive()
}

const boxImage = "berth.test/box:1"

// pod runs a sandbox; change may be nil.
func (n *node) pod(t testing.TB, name string, change func(*runtimeapi.PodSandboxConfig)) (string, *runtimeapi.PodSandboxConfig) {
	t.Helper()
	return n.podOf(t, "", name, change)
}

// podConfig is that of a pod below the node's own group.
func (n *node) podConfig(name string) *runtimeapi.PodSandboxConfig {
	cfg := podConfig(name)
	cfg.Linux.CgroupParent = n.cfg.CgroupRoot + "/pod-" + name
	return cfg
}

// podOf is pod with a runtime handler.
func (n *node) podOf(t testing.TB, handler, name string, change func(*runtimeapi.PodSandboxConfig)) (string, *runtimeapi.PodSandboxConfig) {
	t.Helper()
	cfg := n.podConfig(name)
	cfg.Linux.SecurityContext = &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
	}
	cfg.LogDirectory = filepath.Join(n.cfg.LogDir, "default_"+name+"_uid-"+name)
	if change != nil {
		change(cfg)
	}
	r, err := n.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	if err != nil {
		t.Fatal(err)
	}
	return r.PodSandboxId, cfg
}

// run creates and starts a container with this command.
func (n *node) run(t testing.TB, pod, name string, change func(*runtimeapi.ContainerConfig), cmd ...string) string {
	t.Helper()
	id, err := n.tryRun(pod, name, change, cmd...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (n *node) tryRun(pod, name string, change func(*runtimeapi.ContainerConfig), cmd ...string) (string, error) {
	id, err := n.tryCreate(pod, name, change, cmd...)
	if err != nil {
		return "", err
	}
	_, err = n.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return id, err
}

func (n *node) tryCreate(pod, name string, change func(*runtimeapi.ContainerConfig), cmd ...string) (string, error) {
	cfg := containerConfig(name)
	cfg.Image.Image, cfg.Command, cfg.LogPath = boxImage, cmd, name+"/0.log"
	cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{OomScoreAdj: 1000}
	if change != nil {
		change(cfg)
	}
	r, err := n.CreateContainer(context.Background(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: cfg})
	return r.GetContainerId(), err
}

// output runs a container to its end and returns what it wrote.
func (n *node) output(t testing.TB, pod, name string, change func(*runtimeapi.ContainerConfig), cmd ...string) string {
	t.Helper()
	id := n.run(t, pod, name, change, cmd...)
	c, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done
	return logText(t, c.Record().LogPath)
}

// logText is the content of a log in the CRI format.
func logText(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if len(f) < 4 {
			t.Fatalf("log line %q", line)
		}
		text := f[3]
		if f[2] == "P" {
			text = strings.TrimSuffix(text, "\n")
		}
		out.WriteString(text)
	}
	return out.String()
}

// sh runs a shell command in a container and returns its output.
func (n *node) sh(t testing.TB, id, script string) string {
	t.Helper()
	r, err := n.ExecSync(context.Background(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", script}, Timeout: 60})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 {
		t.Errorf("%s: exit code %d, %s%s", script, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// shares is what a group has of the CPU, in v1's measure: the kernel makes 1024 shares of its weight 100.
func (n *node) shares(t testing.TB, group string) uint64 {
	t.Helper()
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	file := "cpu.shares"
	if h.Mode() == cgroups.Unified {
		file = "cpu.weight"
	}
	b, err := os.ReadFile(filepath.Join(h.Dir("cpu", group), file))
	if err != nil {
		t.Fatal(err)
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if h.Mode() == cgroups.Unified {
		v = v * 1024 / 100
	}
	return v
}

func itoa(n int) string { return strconv.Itoa(n) }

// eventually waits for what nothing announces, long enough for a machine that is emulated.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("it never came to be")
}

// running says whether there is a process with this argument.
func running(t testing.TB, arg string) bool {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), "\x00"+arg+"\x00") {
			return true
		}
	}
	return false
}

// kill kills a process and waits for its end.
func kill(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return
		}
		if err != unix.EINTR { // Go interrupts its own threads
			t.Fatal(err)
		}
	}
}
