package cri

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/container"
	"github.com/berth-node/berth/cri/nri"
	"github.com/berth-node/berth/cri/sandbox"
)

// testPlugin is a plugin in a process of its own. It writes what it hears of to a file, and does what annotations of
// pods and containers say.
type testPlugin struct {
	log  *os.File
	stub stub.Stub
	name string
}

const pluginEnv = "BERTH_TEST_NRI_PLUGIN" // the log file

// beTestPlugin is the whole life of the process.
func beTestPlugin(log string) error {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	p := &testPlugin{log: f, name: os.Getenv("BERTH_TEST_NRI_NAME")}
	var opts []stub.Option
	if socket := os.Getenv("BERTH_TEST_NRI_SOCKET"); socket != "" {
		opts = append(opts, stub.WithSocketPath(socket), stub.WithPluginName(p.name), stub.WithPluginIdx("10"))
	}
	opts = append(opts, stub.WithTTRPCOptions(nil, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(evictToo)}))
	if os.Getenv("BERTH_TEST_NRI_STRICT") != "" {
		opts = append(opts, stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}))
	}
	var plugin any = p
	if os.Getenv("BERTH_TEST_NRI_VALIDATES") != "" {
		plugin = &testValidator{p}
	}
	if p.stub, err = stub.New(plugin, opts...); err != nil {
		return err
	}
	return p.stub.Run(context.Background())
}

// evictToo puts into answers what the stub has no way to say.
func evictToo(ctx context.Context, read ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, call ttrpc.Method) (any, error) {
	var asked *api.Container
	answer, err := call(ctx, func(req any) error {
		err := read(req)
		if r, ok := req.(interface{ GetContainer() *api.Container }); ok {
			asked = r.GetContainer()
		}
		return err
	})
	evict := []*api.ContainerEviction{{ContainerId: asked.GetAnnotations()["test/evict"], Reason: "it is in the way"}}
	switch r := answer.(type) {
	case *api.CreateContainerResponse:
		if evict[0].ContainerId != "" {
			r.Evict = evict
		}
	case *api.UpdateContainerResponse:
		if evict[0].ContainerId == "itself" {
			evict[0].ContainerId = asked.GetId()
			r.Evict = evict
		}
	}
	return answer, err
}

// testValidator is a plugin that looks at what others have made of containers.
type testValidator struct{ *testPlugin }

func (v *testValidator) ValidateContainerAdjustment(_ context.Context, r *api.ValidateContainerAdjustmentRequest) error {
	v.say("validate %s", r.GetContainer().GetName())
	if r.GetAdjust().GetArgs() != nil {
		return errors.New("arguments must not be changed")
	}
	return nil
}

func (p *testPlugin) say(format string, args ...any) { fmt.Fprintf(p.log, format+"\n", args...) }

func (p *testPlugin) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	p.say("configure %s %s %v", strings.TrimSpace(config), runtime, version != "")
	return 0, nil
}

func (p *testPlugin) Synchronize(_ context.Context, pods []*api.PodSandbox, ctrs []*api.Container) ([]*api.ContainerUpdate, error) {
	for _, pod := range pods {
		p.say("known pod %s", pod.GetName())
	}
	for _, c := range ctrs {
		p.say("known container %s %s", c.GetName(), c.GetState())
	}
	if d, err := time.ParseDuration(os.Getenv("BERTH_TEST_NRI_LOOKS_FOR")); err == nil {
		time.Sleep(d) // as one that looks at each container
	}
	p.say("synchronize")
	return nil, nil
}

func (p *testPlugin) pod(event string, pod *api.PodSandbox) error {
	p.say("%s %s", event, pod.GetName())
	if pod.GetAnnotations()["test/refuse"] == event {
		return errors.New("refused by the test")
	}
	return nil
}

func (p *testPlugin) ctr(event string, c *api.Container) error {
	p.say("%s %s %s", event, c.GetName(), c.GetState())
	if c.GetAnnotations()["test/refuse"] == event {
		return errors.New("refused by the test")
	}
	return nil
}

func (p *testPlugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("RunPodSandbox", pod)
}

func (p *testPlugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("StopPodSandbox", pod)
}

func (p *testPlugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("RemovePodSandbox", pod)
}

func (p *testPlugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, r *api.LinuxResources) error {
	p.say("shares %d", r.GetCpu().GetShares().GetValue())
	return p.pod("UpdatePodSandbox", pod)
}

func (p *testPlugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.pod("PostUpdatePodSandbox", pod)
}

func (p *testPlugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	err := p.ctr("CreateContainer", c)
	ann := c.GetAnnotations()
	switch ann["test/do"] {
	case "crash":
		os.Exit(1)
	case "hang":
		time.Sleep(time.Minute)
	case "more":
		return p.more(c), nil, nil
	case "args":
		if p.name == "validates" {
			return nil, nil, err
		}
		a := &api.ContainerAdjustment{}
		a.SetArgs([]string{"true"})
		return a, nil, nil
	case "class":
		a := &api.ContainerAdjustment{}
		a.SetLinuxBlockIOClass("gold")
		return a, nil, nil
	case "adjust":
		p.say("adjust %d shares, weight %q", c.GetLinux().GetResources().GetCpu().GetShares().GetValue(), c.GetLinux().GetResources().GetUnified()["cpu.weight"])
		return p.adjustment(c), nil, nil
	case "others":
		return nil, []*api.ContainerUpdate{limitOf(ann["test/other"], 32<<20)}, nil
	}
	return nil, nil, err
}

func limitOf(id string, bytes int64) *api.ContainerUpdate {
	u := &api.ContainerUpdate{ContainerId: id}
	u.SetLinuxMemoryLimit(bytes)
	return u
}

// adjustment is one of everything that this kernel can do.
func (p *testPlugin) adjustment(c *api.Container) *api.ContainerAdjustment {
	a := &api.ContainerAdjustment{}
	a.AddAnnotation("test/added", "yes")
	a.AddEnv("ADDED", "by a plugin")
	a.RemoveEnv("FROM_IMAGE")
	a.RemoveMount("/dev/mqueue")
	a.SetArgs([]string{"sh", "-c", "echo args from a plugin; exec sleep 1000"})
	a.AddMount(&api.Mount{Source: c.GetAnnotations()["test/dir"], Destination: "/plugged", Type: "bind", Options: []string{"rbind", "ro"}})
	a.AddDevice(&api.LinuxDevice{Path: "/dev/plugged", Type: "c", Major: 1, Minor: 5, FileMode: api.FileMode(0o666)})
	a.AddRlimit("RLIMIT_NOFILE", 333, 222)
	a.AddHooks(&api.Hooks{CreateRuntime: []*api.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat > " + c.GetAnnotations()["test/dir"] + "/hook"}}}})
	a.SetLinuxMemoryLimit(48 << 20)
	a.SetLinuxCPUShares(600)
	a.SetLinuxPidLimits(77)
	a.SetLinuxOomScoreAdj(&[]int{999}[0])
	a.SetLinuxIOPriority(&api.LinuxIOPriority{Class: api.IOPrioClass_IOPRIO_CLASS_BE, Priority: 6})
	a.SetLinuxSysctl("net.ipv4.ip_unprivileged_port_start", "99")
	a.SetLinuxCgroupsPath(c.GetAnnotations()["test/cgroup"])
	a.AddCDIDevice(&api.CDIDevice{Name: "berth.test/gadget=one"})
	a.SetLinuxSeccompPolicy(&api.LinuxSeccomp{DefaultAction: "SCMP_ACT_ALLOW", Syscalls: []*api.LinuxSyscall{{Names: []string{"mkdir", "mkdirat"}, Action: "SCMP_ACT_ERRNO"}}})
	return a
}

// more is what is asked for more rarely.
func (p *testPlugin) more(c *api.Container) *api.ContainerAdjustment {
	a := &api.ContainerAdjustment{}
	note := func(name string) *api.Hook {
		return &api.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "cat > " + c.GetAnnotations()["test/dir"] + "/" + name}}
	}
	a.AddHooks(&api.Hooks{
		Prestart: []*api.Hook{note("prestart")}, CreateRuntime: []*api.Hook{note("createRuntime")}, Poststart: []*api.Hook{note("poststart")}, Poststop: []*api.Hook{note("poststop")},
		CreateContainer: []*api.Hook{note("createContainer")},
		StartContainer:  []*api.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat > /tmp/startContainer"}}},
	})
	a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "uts", Path: fmt.Sprintf("/proc/%d/ns/uts", os.Getpid())})
	a.SetLinuxScheduler(&api.LinuxScheduler{Policy: api.LinuxSchedulerPolicy_SCHED_BATCH, Nice: 5})
	a.SetLinuxCPUSetCPUs("0")
	a.SetLinuxCPUQuota(60000)
	a.SetLinuxCPUPeriod(100000)
	a.RemoveDevice("/dev/given")
	return a
}

func (p *testPlugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	if v := c.GetAnnotations()["test/added"]; v != "" {
		p.say("added %s", v)
	}
	return p.ctr("PostCreateContainer", c)
}

func (p *testPlugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.ctr("StartContainer", c)
}

func (p *testPlugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	if other := c.GetAnnotations()["test/unsolicited"]; other != "" {
		go func() {
			failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{limitOf(other, 24<<20), limitOf("nobody", 1)})
			p.say("updated, %d failed, %v", len(failed), err)
		}()
	}
	return p.ctr("PostStartContainer", c)
}

func (p *testPlugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.say("limit %d", r.GetMemory().GetLimit().GetValue())
	if c.GetAnnotations()["test/do"] == "halve" {
		return []*api.ContainerUpdate{limitOf(c.GetId(), r.GetMemory().GetLimit().GetValue()/2)}, nil
	}
	return nil, p.ctr("UpdateContainer", c)
}

func (p *testPlugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.ctr("PostUpdateContainer", c)
}

func (p *testPlugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.ctr("StopContainer", c)
}

func (p *testPlugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.ctr("RemoveContainer", c)
}

// pluggedNode is a node that plugins can connect to.
func pluggedNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.cfg.NRI = &nri.Config{
		Socket: filepath.Join(n.cfg.RunDir, "nri.sock"), PluginDir: t.TempDir(), ConfigDir: t.TempDir(),
		// A plugin on a busy machine is not to be taken for one that hangs.
		RegistrationTimeout: time.Minute, RequestTimeout: time.Minute,
	}
	return n
}

// plug starts a plugin process that connects to the socket, and returns a way to wait for what it says.
func (n *node) plug(t *testing.T, name string, env ...string) *pluginProcess {
	t.Helper()
	p := &pluginProcess{log: filepath.Join(t.TempDir(), "log")}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), pluginEnv+"="+p.log, "BERTH_TEST_NRI_SOCKET="+n.cfg.NRI.Socket, "BERTH_TEST_NRI_NAME="+name)
	p.cmd.Env = append(p.cmd.Env, env...)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	p.wait(t, "synchronize")
	return p
}

type pluginProcess struct {
	cmd *exec.Cmd
	log string
}

// said is all that the plugin has said.
func (p *pluginProcess) said() []string {
	f, err := os.Open(p.log)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []string
	for s := bufio.NewScanner(f); s.Scan(); {
		out = append(out, s.Text())
	}
	return out
}

func (p *pluginProcess) wait(t *testing.T, line string) {
	t.Helper()
	for range 6000 {
		if slices.Contains(p.said(), line) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the plugin never said %q, but %q", line, p.said())
}

// settled waits until the runtime knows the plugin too, which is a moment after the plugin knows the runtime.
func (n *node) settled(t *testing.T, want bool) {
	t.Helper()
	eventually(t, func() bool { return n.core.host.Plugins.Active() == want })
}

func annotated(kv ...string) func(*runtimeapi.ContainerConfig) {
	return func(c *runtimeapi.ContainerConfig) {
		c.Annotations = map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			c.Annotations[kv[i]] = kv[i+1]
		}
	}
}

func TestPluginEvents(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	before, _ := n.pod(t, "before", nil)
	n.run(t, before, "old", nil, "sleep", "1000")
	p := n.plug(t, "events")
	n.settled(t, true)
	if said := p.said(); !slices.Contains(said, "known pod before") || !slices.Contains(said, "known container old CONTAINER_RUNNING") || !slices.Contains(said, "configure  berth true") {
		t.Errorf("at its coming it was told %q", said)
	}
	start := len(p.said())
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "main", nil, "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 40 << 20}}); err != nil {
		t.Error(err)
	}
	if _, err := n.UpdatePodSandboxResources(t.Context(), &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Resources: &runtimeapi.LinuxContainerResources{CpuShares: 512}}); err != nil {
		t.Error(err)
	}
	n.output(t, pod, "short", nil, "true")             // ends by itself
	p.wait(t, "StopContainer short CONTAINER_STOPPED") // nobody else waits for that
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 10}); err != nil {
		t.Error(err)
	}
	for range 2 {
		if _, err := n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
	}
	if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Error(err)
	}
	want := []string{
		"RunPodSandbox a",
		"CreateContainer main CONTAINER_CREATED", "PostCreateContainer main CONTAINER_CREATED", "StartContainer main CONTAINER_CREATED", "PostStartContainer main CONTAINER_RUNNING",
		"limit 41943040", "UpdateContainer main CONTAINER_RUNNING", "PostUpdateContainer main CONTAINER_RUNNING",
		"shares 512", "UpdatePodSandbox a", "PostUpdatePodSandbox a",
		"CreateContainer short CONTAINER_CREATED", "PostCreateContainer short CONTAINER_CREATED", "StartContainer short CONTAINER_CREATED", "PostStartContainer short CONTAINER_RUNNING",
		"StopContainer short CONTAINER_STOPPED",
		"StopContainer main CONTAINER_STOPPED", "StopPodSandbox a",
		"RemoveContainer main CONTAINER_STOPPED", "RemoveContainer short CONTAINER_STOPPED", "RemovePodSandbox a",
	}
	if got := p.said()[start:]; !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestPluginAdjusts(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	specDir, dir := t.TempDir(), t.TempDir()
	n.core.host.CDI.Dirs = []string{specDir}
	if err := os.WriteFile(filepath.Join(specDir, "gadget.json"), fmt.Appendf(nil, cdiSpec, t.TempDir()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("plugged in"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := n.plug(t, "adjusts")
	n.settled(t, true)
	pod, _ := n.pod(t, "a", nil)
	group := n.cfg.CgroupRoot + "/elsewhere/of-a-plugin"
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		annotated("test/do", "adjust", "test/dir", dir, "test/cgroup", group)(cfg)
		cfg.Linux.Resources.CpuShares = 2000
	}, "false")
	p.wait(t, `adjust 2000 shares, weight ""`)
	p.wait(t, "added yes")
	for script, want := range map[string]string{
		"echo $ADDED/$FROM_IMAGE/$GADGET":                                "by a plugin//one",
		"cat /plugged/file":                                              "plugged in",
		"touch /plugged/x 2>/dev/null || echo ro":                        "ro",
		"head -c 2 /dev/plugged | stat -c %F /dev/plugged":               "character special file",
		"head -c 2 /dev/gadget | stat -c %F /dev/gadget":                 "character special file",
		"grep -c /dev/mqueue /proc/1/mounts || true":                     "0",
		"cat /proc/1/oom_score_adj":                                      "999",
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start":              "99",
		"mkdir /x 2>/dev/null && echo made || echo denied":               "denied",
		"grep 'open files' /proc/1/limits | grep -o '[0-9][0-9 ]*[0-9]'": "222                  333",
	} {
		if got := n.sh(t, id, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	eventually(t, func() bool { return logText(t, statusOf(t, n.Server, id).LogPath) == "args from a plugin\n" })
	if b, err := os.ReadFile(filepath.Join(dir, "hook")); err != nil || !strings.Contains(string(b), id) {
		t.Errorf("hook: got %s, %v", b, err)
	}
	c, err := n.core.ctrs.Table.ByID.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	u, err := n.core.host.Cgroups.Stat(group)
	if err != nil || c.Record().Cgroup != group || u.Memory.Limit != 48<<20 || u.Pids.Limit != 77 {
		t.Errorf("group %s: got %+v, %v", c.Record().Cgroup, u, err)
	}
	// The container itself cannot tell on cgroup v2, where its group is the root of its own namespace.
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Record().Pid)); err != nil || !strings.Contains(string(b), group+"\n") {
		t.Errorf("groups of its process: got %s, %v", b, err)
	}
	if got := n.shares(t, group); got < 590 || got > 610 {
		t.Errorf("shares: got %d", got)
	}
	// A later change starts from what the plugin has made of it.
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 300}}); err != nil {
		t.Error(err)
	}
	if u, err := n.core.host.Cgroups.Stat(group); err != nil || u.Memory.Limit != 48<<20 || u.Pids.Limit != 77 {
		t.Errorf("after an update: got %+v, %v", u, err)
	}
	if _, err := n.tryRun(pod, "class", annotated("test/do", "class"), "true"); err == nil || !strings.Contains(err.Error(), `block I/O class "gold"`) {
		t.Errorf("what cannot be honoured: got %v", err)
	}
}

func TestPluginAdjustsMore(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	n.plug(t, "more")
	pod, _ := n.pod(t, "a", func(cfg *runtimeapi.PodSandboxConfig) { cfg.Hostname = "not-the-hosts" })
	dir := t.TempDir()
	id := n.run(t, pod, "main", func(cfg *runtimeapi.ContainerConfig) {
		annotated("test/do", "more", "test/dir", dir)(cfg)
		cfg.Devices = []*runtimeapi.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/given", Permissions: "rw"}}
	}, "sleep", "1000")
	host, err := os.Readlink("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		"readlink /proc/1/ns/uts":                host,
		"cut -d' ' -f19,41 /proc/1/stat":         "5 3", // niceness, SCHED_BATCH
		"grep Cpus_allowed_list /proc/1/status":  "Cpus_allowed_list:\t0",
		"test -e /dev/given || echo gone":        "gone",
		"grep -c " + id + " /tmp/startContainer": "1",
	} {
		if got := n.sh(t, id, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	d, err := n.core.host.Cgroups.Detail(n.containerRecord(t, id).Cgroup)
	if err != nil || d.CPUQuotaUs != 60000 {
		t.Errorf("got %+v, %v", d, err)
	}
	called := func(hook string) bool {
		b, err := os.ReadFile(filepath.Join(dir, hook))
		return err == nil && strings.Contains(string(b), id)
	}
	for _, hook := range []string{"prestart", "createRuntime", "createContainer", "poststart"} {
		eventually(t, func() bool { return called(hook) })
	}
	if called("poststop") {
		t.Error("poststop was called before the end")
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return called("poststop") })
}

func TestPluginChangesOthers(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	p := n.plug(t, "others")
	n.settled(t, true)
	pod, _ := n.pod(t, "a", nil)
	limit := func(id string) uint64 {
		c, err := n.core.ctrs.Table.ByID.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		u, err := n.core.host.Cgroups.Stat(c.Record().Cgroup)
		if err != nil {
			t.Fatal(err)
		}
		return u.Memory.Limit
	}
	first := n.run(t, pod, "first", annotated("test/do", "halve"), "sleep", "1000")
	n.run(t, pod, "second", annotated("test/do", "others", "test/other", first), "sleep", "1000")
	if got := limit(first); got != 32<<20 {
		t.Errorf("by the creation of another: got %d", got)
	}
	n.run(t, pod, "third", annotated("test/unsolicited", first), "sleep", "1000")
	p.wait(t, "updated, 1 failed, <nil>")
	if got := limit(first); got != 24<<20 {
		t.Errorf("unsolicited: got %d", got)
	}
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: first, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}); err != nil {
		t.Error(err)
	}
	if got := limit(first); got != 32<<20 {
		t.Errorf("halved: got %d", got)
	}
}

func TestPluginRefuses(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	p := n.plug(t, "refuses")
	n.settled(t, true)
	cfg := podConfig("refused")
	cfg.Linux.CgroupParent, cfg.Annotations = n.cfg.CgroupRoot+"/refused", map[string]string{"test/refuse": "RunPodSandbox"}
	if _, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg}); err == nil || !strings.Contains(err.Error(), "refused by the test") {
		t.Errorf("sandbox: got %v", err)
	}
	if l := n.leaks(t); len(l) > 0 || len(n.core.pods.Table.ByID.All(sandbox.Newest)) > 0 {
		t.Errorf("left behind: %q", l)
	}
	pod, _ := n.pod(t, "a", nil)
	if _, err := n.tryRun(pod, "c", annotated("test/refuse", "CreateContainer"), "true"); err == nil || !strings.Contains(err.Error(), "refused by the test") {
		t.Errorf("container: got %v", err)
	}
	p.wait(t, "RemoveContainer c CONTAINER_CREATED")
	if l, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(l.Containers) > 0 {
		t.Errorf("containers: got %v, %v", l, err)
	}
	if _, err := n.tryRun(pod, "c", annotated("test/refuse", "StartContainer"), "true"); err == nil || !strings.Contains(err.Error(), "refused by the test") {
		t.Errorf("start: got %v", err)
	}
	// What has happened already goes on.
	id := n.run(t, pod, "stop", annotated("test/refuse", "StopContainer"), "sleep", "1000")
	if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
}

// TestPluginEvicts: what a plugin wants to be gone gets its stop signal, and is killed when its grace is over.
func TestPluginEvicts(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	n.plug(t, "evicts")
	n.settled(t, true)
	pod, _ := n.pod(t, "a", nil)
	const patient = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"
	polite := n.run(t, pod, "polite", nil, "sh", "-c", patient)
	deaf := n.run(t, pod, "deaf", annotated(container.GraceAnnotation, "1"), "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	itself := n.run(t, pod, "itself", annotated("test/evict", "itself"), "sh", "-c", patient)
	for _, id := range []string{polite, deaf, itself} {
		eventually(t, func() bool { return logText(t, statusOf(t, n.Server, id).LogPath) == "ready\n" })
	}
	n.run(t, pod, "one", annotated("test/evict", polite), "sleep", "1000")
	n.run(t, pod, "two", annotated("test/evict", deaf), "sleep", "1000")
	n.run(t, pod, "three", annotated("test/evict", "nobody"), "sleep", "1000")
	if _, err := n.UpdateContainerResources(t.Context(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: itself, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}); err != nil {
		t.Error(err)
	}
	for id, code := range map[string]int32{polite: 7, deaf: 137, itself: 7} {
		c, err := n.core.ctrs.Table.ByID.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		<-c.Done
		if st := statusOf(t, n.Server, id); st.ExitCode != code || st.Message != "evicted by an NRI plugin: it is in the way" {
			t.Errorf("got %v", st)
		}
	}
}

// TestPluginValidates: a plugin may refuse what others have made of a container.
func TestPluginValidates(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	n.plug(t, "adjusts")
	v := n.plug(t, "validates", "BERTH_TEST_NRI_VALIDATES=yes")
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "plain", nil, "sleep", "1000")
	v.wait(t, "validate plain")
	if _, err := n.tryRun(pod, "changed", annotated("test/do", "args"), "sleep", "1000"); err == nil || !strings.Contains(err.Error(), "arguments must not be changed") {
		t.Errorf("got %v", err)
	}
	if l, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(l.Containers) != 1 {
		t.Errorf("containers: got %v, %v", l, err)
	}
}

// TestPluginInsists: a plugin that says so is not passed over when it does not answer in time, and stays.
func TestPluginInsists(t *testing.T) {
	n := pluggedNode(t)
	n.cfg.NRI.RequestTimeout = 5 * time.Second
	n.open(t)
	n.plug(t, "insists", "BERTH_TEST_NRI_STRICT=yes")
	n.settled(t, true)
	pod, _ := n.pod(t, "a", nil)
	if _, err := n.tryRun(pod, "hang", annotated("test/do", "hang"), "true"); err == nil || !strings.Contains(err.Error(), "10-insists") {
		t.Errorf("got %v", err)
	}
	n.settled(t, true)
}

// TestPluginComesBack: a plugin that was restarted learns again of all there is.
func TestPluginComesBack(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "main", nil, "sleep", "1000")
	for range 2 {
		p := n.plug(t, "again")
		n.settled(t, true)
		if said := p.said(); !slices.Contains(said, "known pod a") || !slices.Contains(said, "known container main CONTAINER_RUNNING") {
			t.Errorf("got %q", said)
		}
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// TestPluginFails: a plugin that crashes or hangs is let go, and the pods do not suffer.
func TestPluginFails(t *testing.T) {
	n := pluggedNode(t)
	n.cfg.NRI.RequestTimeout = 5 * time.Second
	n.open(t)
	pod, _ := n.pod(t, "a", nil)
	for _, how := range []string{"crash", "hang"} {
		n.plug(t, how)
		n.settled(t, true)
		id := n.run(t, pod, how, annotated("test/do", how), "sleep", "1000")
		if got := n.sh(t, id, "echo fine"); got != "fine" {
			t.Errorf("%s: got %q", how, got)
		}
		n.settled(t, false)
	}
	// One that is killed while nobody asks it anything is noticed by the next call.
	p := n.plug(t, "killed")
	n.settled(t, true)
	p.cmd.Process.Kill()
	p.cmd.Wait()
	n.run(t, pod, "after", nil, "sleep", "1000")
}

// TestPluginLooksAtAll: who is told of all pods at once has longer for that than for one of them.
func TestPluginLooksAtAll(t *testing.T) {
	n := pluggedNode(t)
	n.cfg.NRI.RequestTimeout = 5 * time.Second // in which a plugin answers on a machine that has much other work
	n.open(t)
	pod, _ := n.pod(t, "a", nil)
	p := n.plug(t, "slow", "BERTH_TEST_NRI_LOOKS_FOR=6s")
	n.settled(t, true)
	n.run(t, pod, "main", nil, "sleep", "1000")
	p.wait(t, "PostStartContainer main CONTAINER_RUNNING")
	// A call has its own time again.
	n.run(t, pod, "hang", annotated("test/do", "hang"), "sleep", "1000")
	n.settled(t, false)
}

// TestLaunchedPlugin: plugins of the directory are started with the runtime, and end with it.
func TestLaunchedPlugin(t *testing.T) {
	n := pluggedNode(t)
	p := &pluginProcess{log: filepath.Join(t.TempDir(), "log")}
	script := fmt.Sprintf("#!/bin/sh\nexport %s=%s\nexec %s\n", pluginEnv, p.log, os.Args[0])
	if err := os.WriteFile(filepath.Join(n.cfg.NRI.PluginDir, "07-launched"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.cfg.NRI.ConfigDir, "launched.conf"), []byte("its configuration"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.open(t)
	if said := p.said(); !slices.Equal(said, []string{"configure its configuration berth true", "synchronize"}) {
		t.Errorf("got %q", said)
	}
	pod, _ := n.pod(t, "a", nil)
	n.run(t, pod, "main", nil, "sleep", "1000")
	p.wait(t, "PostStartContainer main CONTAINER_RUNNING")
	// Another runtime does not take the socket away.
	other := &testRuntime{}
	q, err := nri.Start(nri.Config{Socket: n.cfg.NRI.Socket, Log: discard()}, other)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	n.plug(t, "connected").wait(t, "known container main CONTAINER_RUNNING")
}

// TestPluginSocketIsMadeAgain: plugins find the runtime after somebody has removed its socket, and those that are there
// stay.
func TestPluginSocketIsMadeAgain(t *testing.T) {
	n := pluggedNode(t)
	n.open(t)
	first := n.plug(t, "first")
	path := n.cfg.NRI.Socket
	for i, harm := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return errors.Join(os.WriteFile(path+".x", nil, 0o600), os.Rename(path+".x", path)) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool {
			c, err := net.Dial("unix", path)
			if err == nil {
				c.Close()
			}
			return err == nil
		})
		n.plug(t, "next"+itoa(i))
	}
	n.pod(t, "a", nil)
	first.wait(t, "RunPodSandbox a")
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*nri.sock*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	n.open(t)
}

type testRuntime struct{}

func (*testRuntime) PluginState(context.Context) ([]*api.PodSandbox, []*api.Container) {
	return nil, nil
}

func (*testRuntime) PluginEvict([]*api.ContainerEviction) {}

func (*testRuntime) PluginUpdate(_ context.Context, u []*api.ContainerUpdate) []*api.ContainerUpdate {
	return u
}
