package conformance

import (
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const pauseImage = "berth.test/pause:1"

// what containerd 1.6 cannot pass, and why.
var containerd16 = map[string]string{
	"RuntimeConfig":        "containerd 1.6 is older than this call",
	"TargetNamespace":      "containerd 1.6 looks for the target in another way than by the container's own sandbox",
	"StrictGroups":         "containerd 1.6 is older than the policy of supplemental groups and the user in the status",
	"RecursiveReadOnly":    "containerd 1.6 is older than recursive read-only mounts",
	"StopSignal":           "containerd 1.6 takes the stop signal from the image alone",
	"AttachWebSocket":      "containerd 1.6 speaks version 4 of the protocol, which has no word for the end of the input",
	"PortForwardWebSocket": "containerd 1.6 does not know SPDY in a WebSocket",
	"ListOrder":            "containerd 1.6 lists in no order",
	"ResourcesInStatus":    "containerd 1.6 does not tell resources in the status",

	"ExecSyncTimeout":    "containerd 1.6 kills the command alone and then waits for the output of what it has left behind, for ever",
	"ExecSyncLeftBehind": "containerd 1.6 waits for the output of what a command has left behind, for ever",

	"ExitCodes/Times":           "containerd 1.6 takes the time of a start when it has returned, by when the container may have ended",
	"SandboxLife/StopRemoved":   "containerd 1.6 does not find it",
	"UnknownIDs/StopPodSandbox": "containerd 1.6 does not find it",
	"UnknownIDs/StopContainer":  "containerd 1.6 does not find it",
	"UnknownIDs/NotFound":       "containerd 1.6 gives some errors no code",
	"ManyAtOnce/StopsMeet":      "containerd 1.6 finds the network gone that another stop has taken down",
	"Images/Filter":             "containerd 1.6 lists all images whatever the filter",
	"ImageThatIsNot/Filter":     "containerd 1.6 lists all images whatever the filter",
	"PortForwardSPDY/IPv6":      "containerd 1.6 does not reach ::1 alone",
	"ExecWebSocket/EndOfInput":  "containerd 1.6 speaks version 4 of the protocol, which has no word for it",
	"Privileged/Sysfs":          "containerd 1.6 makes the sysfs of a pod read-only for all its containers",
}

// TestContainerd runs Debian's containerd on directories, a bridge and a cgroup of its own.
func TestContainerd(t *testing.T) {
	prog, err := osexec.LookPath("containerd")
	if err != nil {
		t.Skip("containerd is not installed (.ci/deps test installs it)")
	}
	Run(t, func(t *testing.T) *Target {
		n := newNode(t)
		n.cleanFilter(t)
		cleanGroups(t)
		must(t)(os.MkdirAll(n.dir+"/cni", 0o755))
		must(t)(os.WriteFile(n.dir+"/config.toml", []byte(n.containerdConfig()), 0o644))
		must(t)(os.WriteFile(n.dir+"/cni/10-conformance.conflist", []byte(n.network()), 0o644))
		n.pause(t)
		cmd := n.start(t, prog, "--config", n.dir+"/config.toml", "--log-level", "warn")
		t.Cleanup(func() {
			end(t, cmd)
			if err := osexec.Command("ip", "link", "del", n.bridge).Run(); err != nil {
				t.Errorf("remove bridge: %v", err)
			}
			n.unmount()
		})
		r := n.dial(t, n.dir+"/sock")
		for _, a := range []string{"busybox", "pause"} {
			out, err := osexec.Command("ctr", "-a", n.dir+"/sock", "-n", "k8s.io", "images", "import", n.dir+"/images/"+a+".tar").CombinedOutput()
			if err != nil {
				t.Fatalf("import %s: %v: %s", a, err, out)
			}
		}
		target := n.target(t, r)
		target.Lacks = containerd16
		return target
	})
}

func (n *node) containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[2]s"
  restrict_oom_score_adj = true
  stats_collect_period = 1
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "%[1]s/certs"
[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"
`, n.dir, pauseImage)
}

func (n *node) network() string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "conformance", "plugins": [
  {"type": "bridge", "bridge": "%s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "%s/ipam", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "%s"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`, n.bridge, n.dir, n.cidr)
}

// pause builds the image of the process that holds a sandbox.
func (n *node) pause(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"gcc", "-static", "-Os", "-o", n.dir + "/pause", "../fixtures/pause.c"},
		{"go", "run", "../mkimage", "-o", n.dir + "/images/pause.tar", "-name", pauseImage, "-entrypoint", "/pause", "/pause=" + n.dir + "/pause"},
	} {
		if out, err := osexec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args[0], err, out)
		}
	}
}

func (n *node) unmount() {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for _, l := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], n.dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

// cleanGroups takes away the group that containerd puts pods without a parent into, where there was none.
func cleanGroups(t *testing.T) {
	groups := func() []string {
		v1, err := filepath.Glob("/sys/fs/cgroup/*/k8s.io")
		must(t)(err)
		v2, err := filepath.Glob("/sys/fs/cgroup/k8s.io")
		must(t)(err)
		return append(v1, v2...)
	}
	before := groups()
	t.Cleanup(func() {
		for _, g := range groups() {
			if slices.Contains(before, g) {
				continue
			}
			if err := os.Remove(g); err != nil {
				t.Logf("remove group: %v", err)
			}
		}
	})
}

// cleanFilter takes away what the plugins leave in the packet filter for good: chains, and tables where there were none.
func (n *node) cleanFilter(t *testing.T) {
	before, err := tables()
	must(t)(err)
	const forward = "/proc/sys/net/ipv4/ip_forward"
	forwarding, err := os.ReadFile(forward)
	must(t)(err)
	had, err := osexec.Command("iptables-save").Output()
	must(t)(err)
	t.Cleanup(func() {
		must(t)(os.WriteFile(forward, forwarding, 0o644))
		now, err := tables()
		must(t)(err)
		for _, table := range now {
			if !slices.Contains(before, table) && strings.HasPrefix(table, "ip") && !strings.Contains(table, "berth") {
				_ = osexec.Command("nft", append([]string{"delete", "table"}, strings.Fields(table)...)...).Run()
			}
		}
		removeChains(t, string(had))
	})
}

func tables() ([]string, error) {
	out, err := osexec.Command("nft", "list", "tables").Output()
	var names []string
	for l := range strings.Lines(string(out)) {
		names = append(names, strings.TrimSpace(strings.TrimPrefix(l, "table ")))
	}
	return names, err
}

// removeChains removes the plugins' chains that were not there before, and what leads to them.
func removeChains(t *testing.T, before string) {
	out, err := osexec.Command("iptables-save", "-t", "nat").Output()
	if err != nil {
		return // the table is gone
	}
	var chains []string
	for l := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(l, ":CNI-"); ok && !strings.Contains(before, l[:strings.IndexByte(l, ' ')]) {
			chains = append(chains, "CNI-"+name[:strings.IndexByte(name, ' ')])
		}
	}
	iptables := func(args ...string) {
		if out, err := osexec.Command("iptables", append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("iptables %q: %v: %s", args, err, out)
		}
	}
	for l := range strings.Lines(string(out)) {
		rule, ok := strings.CutPrefix(strings.TrimSpace(l), "-A ")
		if ok && slices.ContainsFunc(chains, func(c string) bool { return strings.HasSuffix(rule, "-j "+c) && !strings.HasPrefix(rule, "CNI-") }) {
			f := strings.Fields(rule)
			chain, target := f[0], f[len(f)-1]
			// By its number: a comment with spaces would have to be taken apart.
			removeJumps(iptables, chain, target)
		}
	}
	for _, c := range chains {
		iptables("-F", c)
	}
	for _, c := range chains {
		iptables("-X", c)
	}
}

func removeJumps(iptables func(...string), chain, target string) {
	out, _ := osexec.Command("iptables", "-w", "-t", "nat", "-L", chain, "--line-numbers", "-n").Output()
	for _, l := range slices.Backward(strings.Split(string(out), "\n")) {
		if f := strings.Fields(l); len(f) > 1 && f[1] == target {
			iptables("-D", chain, f[0])
			return
		}
	}
}
