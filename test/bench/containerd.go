package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ctrd is Debian's containerd behind its CRI socket, asked by a client that does what a kubelet does and nothing else:
// so its figures are what berth would take if an agent cost nothing.
type ctrd struct {
	*criClient

	b   *bench
	dir string
	cmd *exec.Cmd

	mu        sync.Mutex
	sandboxes map[string]string

	group string // below which its pods are
}

const (
	ctrdBridge = "ctrdbench"
	ctrdCgroup = "/ctrd-bench"
	pauseImage = "berth.test/pause:1"
	clients    = 4 // as many at once as gave containerd its best time on two cores
)

func newContainerd(b *bench) *ctrd {
	return &ctrd{b: b, sandboxes: map[string]string{}, group: ctrdCgroup}
}

func (*ctrd) Name() string { return "containerd" }

func (p *ctrd) Up(ctx context.Context) error {
	p.dir = p.b.dir + "/containerd"
	if err := os.MkdirAll(p.dir+"/cni", 0o755); err != nil {
		return err
	}
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "%[1]s/certs"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
`, p.dir, pauseImage)
	network := fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "bench", "plugins": [
  {"type": "bridge", "bridge": "%s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%s/ipam", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.202.0.0/16"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`, ctrdBridge, p.dir)
	err := errors.Join(os.WriteFile(p.dir+"/config.toml", []byte(config), 0o644),
		os.WriteFile(p.dir+"/cni/10-bench.conflist", []byte(network), 0o644))
	if err != nil {
		return err
	}
	logf, err := os.Create(p.dir + "/log")
	if err != nil {
		return err
	}
	defer logf.Close()
	p.cmd = exec.Command("containerd", "--config", p.dir+"/config.toml", "--log-level", "warn")
	p.cmd.Stdout, p.cmd.Stderr = logf, logf
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	if p.criClient, err = dialCRI(p.Socket()); err != nil {
		return err
	}
	for range 200 {
		if _, err = p.rt.Version(ctx, &runtimeapi.VersionRequest{}); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	for _, archive := range []string{"busybox.tar", "pause.tar"} {
		out, err := exec.Command("ctr", "-a", p.dir+"/sock", "-n", "k8s.io", "images", "import",
			p.b.bin+"/test/"+archive).CombinedOutput()
		if err != nil {
			return fmt.Errorf("import %s: %w: %s", archive, err, out)
		}
	}
	return nil
}

func (p *ctrd) Down() error {
	if p.cmd == nil || p.cmd.Process == nil {
		return nil
	}
	ctx := context.Background()
	for _, id := range p.sandboxes {
		p.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		p.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	}
	p.conn.Close()
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
	var errs []error
	if _, err := os.Stat("/sys/class/net/" + ctrdBridge); err == nil {
		errs = append(errs, exec.Command("ip", "link", "del", ctrdBridge).Run())
	}
	unmountBelow(p.dir)
	removeGroups(p.group)
	return errors.Join(errs...)
}

func (p *ctrd) Apply(ctx context.Context, pods []pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(clients)
	for _, x := range pods {
		g.Go(func() error { return p.apply(ctx, x) })
	}
	return g.Wait()
}

func (p *ctrd) apply(ctx context.Context, x pod) error {
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: x.name, Namespace: "default", Uid: x.name},
		LogDirectory: p.dir + "/logs/" + x.name,
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: p.group + "/pod" + x.name},
	}
	s, err := p.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.sandboxes[x.name] = s.PodSandboxId
	p.mu.Unlock()
	c, err := p.rt.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: s.PodSandboxId, SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
			Image:    &runtimeapi.ImageSpec{Image: image},
			Command:  x.command(),
			LogPath:  "main.log",
			Mounts:   []*runtimeapi.Mount{{ContainerPath: "/b", HostPath: x.marker}},
			Linux:    &runtimeapi.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return err
	}
	_, err = p.rt.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId})
	return err
}

func (p *ctrd) Remove(ctx context.Context, pods []pod) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(clients)
	for _, x := range pods {
		g.Go(func() error {
			p.mu.Lock()
			id := p.sandboxes[x.name]
			delete(p.sandboxes, x.name)
			p.mu.Unlock()
			if _, err := p.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
				return err
			}
			_, err := p.rt.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			// A kubelet removes the pod's own group afterwards.
			removeGroups(p.group + "/pod" + x.name)
			return err
		})
	}
	return g.Wait()
}

func (p *ctrd) Traces() int { return linksOf(ctrdBridge) + groupsBelow(p.group+"/pod*") }

func (p *ctrd) Processes() []int {
	return named(func(pid int, exe string, cmdline []string) bool {
		return pid == p.cmd.Process.Pid || strings.HasSuffix(exe, "/containerd-shim-runc-v2") &&
			strings.Contains(strings.Join(cmdline, " "), p.dir+"/sock") ||
			strings.HasSuffix(exe, "/pause")
	})
}

func (p *ctrd) Parent() string { return p.group }

func (p *ctrd) Socket() string { return p.dir + "/sock" }

func (p *ctrd) Pull(ctx context.Context, ref string) error { return p.pull(ctx, ref) }

func (p *ctrd) Forget(ctx context.Context, ref string) error { return p.forget(ctx, ref) }

// removeGroups removes an empty tree of cgroups in every hierarchy.
func removeGroups(path string) {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + path)
	for _, root := range append(roots, "/sys/fs/cgroup"+path) {
		var dirs []string
		filepath.WalkDir(root, func(d string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, d)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			os.Remove(dir)
		}
	}
}

func unmountBelow(dir string) {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(b), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}
