package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// settings are what a runtime is started with. Files are in its directory; config.toml is one of them.
type settings struct {
	files     map[string]string
	args, env []string
}

// containerd's configuration is that of version 1.6, which containerd 2 understands.
func containerd(r *Runtime) settings {
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[2]s"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[3]s"
  restrict_oom_score_adj = true
  stats_collect_period = 1
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "%[1]s/certs"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
`, r.Dir, r.Socket, pauseImage)
	if r.runc != "" {
		config += fmt.Sprintf(`[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "%s/bin/stuck"
`, r.Dir)
	}
	s := settings{
		files: map[string]string{
			"config.toml": config,
			"certs/" + imageHost + "/hosts.toml": fmt.Sprintf(`server = "http://%[1]s"
[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`, r.registryAddress()),
		},
		args: []string{"--config", r.Dir + "/config.toml", "--log-level", "warn"},
		// the shim of the same version stands beside it
		env: []string{"PATH=" + filepath.Dir(r.path) + ":" + os.Getenv("PATH")},
	}
	if r.runc != "" {
		s.files["bin/stuck"] = r.runc
	}
	return s
}

// CRI-O's has nothing in the places of the machine's CRI-O and podman. Its own defaults of security are switched off
// where this kernel does not have them.
func crio(r *Runtime, events bool) settings {
	program := r.Dir + "/bin/runc"
	switch {
	case r.runc != "":
		program = r.Dir + "/bin/stuck"
	case mayLowerOOMScore():
		program = "/usr/sbin/runc"
	}
	config := fmt.Sprintf(`[crio]
root = "%[1]s/root"
runroot = "%[1]s/runroot"
storage_driver = "overlay"
log_dir = "%[1]s/pods"
version_file = "%[1]s/version"
version_file_persist = "%[1]s/version-persist"
clean_shutdown_file = "%[1]s/clean"
[crio.api]
listen = "%[2]s"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "%[3]s/pinns"
namespaces_dir = "%[1]s/ns"
container_exits_dir = "%[1]s/exits"
container_attach_socket_dir = "%[7]s"
hooks_dir = []
default_capabilities = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"]
selinux = false
log_level = "warn"
enable_pod_events = %[4]t
[crio.runtime.runtimes.runc]
runtime_path = "%[6]s"
runtime_type = "oci"
runtime_root = "%[1]s/runc"
monitor_path = "/usr/bin/conmon"
[crio.image]
pause_image = "%[5]s"
signature_policy = "%[1]s/policy.json"
image_volumes = "mkdir"
[crio.network]
network_dir = "%[1]s/cni"
plugin_dirs = ["/usr/lib/cni"]
[crio.nri]
enable_nri = false
`, r.Dir, r.Socket, filepath.Dir(r.path), events, pauseImage, program, r.short)
	return settings{
		files: map[string]string{
			"config.toml": config,
			"bin/runc":    unscored,
			"bin/stuck":   r.runc,
			"policy.json": `{"default": [{"type": "insecureAcceptAnything"}]}`,
			"registries.conf": fmt.Sprintf("[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", imageHost,
				r.registryAddress()),
			"storage.conf": fmt.Sprintf("[storage]\ndriver = \"overlay\"\ngraphroot = \"%[1]s/root\"\nrunroot = "+
				"\"%[1]s/runroot\"\n", r.Dir),
		},
		args: []string{"--config", r.Dir + "/config.toml", "--config-dir", "", "--registries-conf", r.Dir +
			"/registries.conf"},
		env: []string{"CONTAINERS_STORAGE_CONF=" + r.Dir + "/storage.conf"},
	}
}

// unscored is runc for machines that withhold CAP_SYS_RESOURCE: CRI-O asks for a low OOM score in each of its
// sandboxes, and for all capabilities in privileged containers.
const unscored = `#!/bin/sh
for a; do
  if [ "$last" = --bundle ]; then
    sed -i -e 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/' -e '/"CAP_SYS_RESOURCE",$/d' "$a/config.json"
  fi
  last=$a
done
exec /usr/sbin/runc "$@"
`

// mayLowerOOMScore says whether processes of this machine can be given CAP_SYS_RESOURCE.
func mayLowerOOMScore() bool {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for l := range strings.Lines(string(b)) {
		if set, ok := strings.CutPrefix(l, "CapBnd:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			return err == nil && caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return false
}
