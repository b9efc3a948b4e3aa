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

	"golang.org/x/sys/unix"
)

// node is what runs the pods of a Node. Both have the administrator's credentials: how they join is not measured.
type node interface {
	Name() string
	// Up starts it; Down ends it, with all that it has made.
	Up(ctx context.Context) error
	Down() error
	// Processes are those that it consists of, by name.
	Processes() map[string][]int
}

const (
	cgroup = "/berth-bench-node"
	bridge = "bbenchnode"
)

// agent is ours.
type agent struct {
	b     *bench
	alone bool // without an API server
	place []string
	cmd   *exec.Cmd
}

func (*agent) Name() string { return "berth" }

// dir is where all of it lies.
func (a *agent) dir() string {
	if a.alone {
		return a.b.dir + "/alone"
	}
	return a.b.dir + "/berth"
}

func (a *agent) Up(context.Context) (err error) {
	dir := a.dir()
	for _, d := range []string{"manifests", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if out, err := exec.Command("cp", a.b.bin+"/test/busybox.tar", dir+"/images/").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	a.place = []string{
		"--root-dir=" + dir + "/root", "--run-dir=" + dir + "/run", "--log-dir=" + dir + "/logs",
		"--cgroup-root=" + cgroup, "--bridge-name=" + bridge, "--pod-cidr=10.203.0.0/16",
	}
	flags := []string{
		"agent", "--node-name=berth", "--network=builtin",
		"--manifest-dir=" + dir + "/manifests", "--image-dir=" + dir + "/images", "--cri-socket=", "--node-ip=127.0.0.1",
		"--cni-conf-dir=" + dir + "/cni", "--eviction-hard=memory.available<100Mi", "--port=0", "--max-pods=200", "--cluster-dns=10.96.0.10",
	}
	if !a.alone {
		flags = append(flags, "--kubeconfig="+a.b.dir+"/plane/admin.kubeconfig")
	}
	if a.b.profiles != "" {
		flags = append(flags, "--profiling")
	}
	a.cmd, err = a.b.begin(filepath.Base(dir), a.b.bin+"/berth", append(flags, a.place...)...)
	if err != nil {
		return err
	}
	return enroll(a.cmd.Process.Pid)
}

func (a *agent) Processes() map[string][]int { return map[string][]int{"agent": {a.cmd.Process.Pid}} }

func (a *agent) Down() error {
	end(a.cmd)
	defer discharge()
	out, err := exec.Command(a.b.bin+"/berth", append([]string{"purge", "--yes"}, a.place...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("purge: %w: %s", err, out)
	}
	return nil
}

// kubelet is Kubernetes', with Debian's containerd.
type kubelet struct {
	b               *bench
	runtime, daemon *exec.Cmd
}

func (*kubelet) Name() string { return "kubelet" }

// The runtime's configuration: directories of its own, and kubelet's network.
const containerd = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "berth.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
`

const network = `{"cniVersion": "0.4.0", "name": "bench", "plugins": [
  {"type": "bridge", "bridge": "%s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%s/ipam", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "10.204.0.0/16"}]]}}]}`

const settings = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: %[2]s
podLogsDir: %[1]s/logs
containerRuntimeEndpoint: unix://%[1]s/sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100
healthzPort: 0
port: 21250
maxPods: 200
clusterDNS: [10.96.0.10]
registryPullQPS: 0
`

func (k *kubelet) Up(ctx context.Context) (err error) {
	dir := k.b.dir + "/kubelet"
	if err := os.MkdirAll(dir+"/cni", 0o755); err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(dir+"/config.toml", fmt.Appendf(nil, containerd, dir), 0o644),
		os.WriteFile(dir+"/cni/10-bench.conflist", fmt.Appendf(nil, network, bridge, dir), 0o644),
		os.WriteFile(dir+"/config.yaml", fmt.Appendf(nil, settings, dir, cgroup), 0o644)); err != nil {
		return err
	}
	if k.runtime, err = k.b.begin("containerd", "containerd", "--config", dir+"/config.toml", "--log-level", "warn"); err != nil {
		return err
	}
	for _, archive := range []string{"busybox.tar", "pause.tar"} {
		if err := until(ctx, "containerd has "+archive, func() error {
			out, err := exec.CommandContext(ctx, "ctr", "-a", dir+"/sock", "-n", "k8s.io", "images", "import",
				k.b.bin+"/test/"+archive).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	for _, c := range controllers() {
		if err := os.MkdirAll(c+cgroup, 0o755); err != nil {
			return err
		}
		for _, f := range []string{"cpus", "mems"} { // a group of the first hierarchy of cpusets begins with none
			if all, err := os.ReadFile(c + "/cpuset." + f); err == nil {
				_ = os.WriteFile(c+cgroup+"/cpuset."+f, all, 0o644)
			}
		}
	}
	k.daemon, err = k.b.begin("kubelet", k.b.kubelet, "--config", dir+"/config.yaml", "--kubeconfig",
		k.b.dir+"/plane/admin.kubeconfig", "--root-dir", dir+"/kubelet", "--hostname-override", "kubelet",
		"--node-ip", "127.0.0.1", "--cert-dir", dir+"/pki")
	if err != nil {
		return err
	}
	return errors.Join(enroll(k.runtime.Process.Pid), enroll(k.daemon.Process.Pid))
}

func controllers() []string {
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if len(groups) == 0 || fileExists("/sys/fs/cgroup/cgroup.controllers") {
		return []string{"/sys/fs/cgroup"}
	}
	for i, g := range groups {
		groups[i] = filepath.Dir(g)
	}
	return groups
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (k *kubelet) Processes() map[string][]int {
	return map[string][]int{"agent": {k.daemon.Process.Pid, k.runtime.Process.Pid}}
}

func (k *kubelet) Down() error {
	end(k.daemon)
	defer discharge()
	dir := k.b.dir + "/kubelet"
	// Sandboxes are tasks of containerd's own, which its client ends.
	list, _ := exec.Command("ctr", "-a", dir+"/sock", "-n", "k8s.io", "containers", "list", "-q").Output()
	for id := range strings.FieldsSeq(string(list)) {
		_ = exec.Command("ctr", "-a", dir+"/sock", "-n", "k8s.io", "tasks", "delete", "--force", id).Run()
		_ = exec.Command("ctr", "-a", dir+"/sock", "-n", "k8s.io", "containers", "delete", id).Run()
	}
	end(k.runtime)
	if fileExists("/sys/class/net/" + bridge) {
		_ = exec.Command("ip", "link", "delete", bridge).Run()
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	for _, line := range slices.Backward(strings.Split(string(mounts), "\n")) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			err = errors.Join(err, unix.Unmount(f[1], unix.MNT_DETACH))
		}
	}
	for _, c := range controllers() {
		var groups []string
		_ = filepath.WalkDir(c+cgroup, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		for _, g := range slices.Backward(groups) {
			_ = os.Remove(g)
		}
	}
	return err
}
