package system

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/systemd"
)

const (
	rebootService = "/etc/systemd/system/berth-sys-reboot.service"
	rebootBurst   = "apiVersion: v1\nkind: Pod\nmetadata: {name: burstable, annotations: {berth.node/oom-group: pod, " +
		"berth.node/cpu-burst: 20ms}}\nspec:\n  terminationGracePeriodSeconds: 0\n  "
)

// rebootNode is a node on directories that outlast a reboot, but for the run directory.
func rebootNode(t *testing.T) *Node {
	const dir = "/var/tmp/berth-sys-reboot"
	n := &Node{
		t: t, Dir: dir, Log: dir + "/agent.log", driver: cgroups.DriverSystemd, CgroupRoot: systemd.SlicePath("/berth-sys-reboot"),
		Bridge: "bsreboot", CIDR: "10.99.99.0/24", service: filepath.Base(rebootService),
	}
	n.client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", dir+"/run/berth.sock")
		},
	}}
	return n
}

// TestReboot is in two parts, with a reboot of the machine between them: BERTH_REBOOT=before leaves pods behind and an
// agent that is an enabled service by its own unit, with the systemd driver; BERTH_REBOOT=after requires the pods to be
// back, and takes everything away.
func TestReboot(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("needs systemd: the agent is its service")
	}
	switch os.Getenv("BERTH_REBOOT") {
	case "before":
		beforeReboot(t, rebootNode(t))
	case "after":
		afterReboot(t, rebootNode(t))
	default:
		t.Skip("needs BERTH_REBOOT=before, a reboot, and BERTH_REBOOT=after")
	}
}

func beforeReboot(t *testing.T, n *Node) {
	for _, d := range []string{"bin", "images", "manifests", "run"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", n.Dir+"/run", "tmpfs", 0, ""); err != nil { // as /run is
		t.Fatal(err)
	}
	for _, name := range []string{"berth", "berth-helper"} {
		write(t, n.Dir+"/bin/"+name, readAll(t, bin(name)))
		if err := os.Chmod(n.Dir+"/bin/"+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, img := range testImages(t) {
		write(t, filepath.Join(n.Dir, "images", filepath.Base(img)), readAll(t, img))
	}
	n.apply("guaranteed.yaml", pod("guaranteed",
		"\n  containers: [{name: c, image: "+image+", command: [sleep, '1000'], resources: {limits: {cpu: 500m, memory: "+
			"64Mi}}}]"))
	n.apply("burstable.yaml", rebootBurst+strings.Replace(sleeper, "%s",
		"{requests: {cpu: 250m}, limits: {cpu: 500m, memory: 64Mi}}", 1)+"\n")
	unit, err := exec.Command(n.Dir+"/bin/berth", append([]string{"unit", "--"}, n.agentArgs()[1:]...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	write(t, rebootService, string(unit))
	systemctl(t, "daemon-reload")
	systemctl(t, "enable", "--now", n.service)
	n.waitUp()
	ids := readAll(t, "/proc/sys/kernel/random/boot_id")
	for _, name := range []string{"guaranteed", "burstable"} {
		p := n.waitReady(name)
		ids += string(p.UID) + " " + p.Status.ContainerStatuses[0].ContainerID + "\n"
	}
	write(t, n.Dir+"/before", ids)
	unix.Sync()
}

func afterReboot(t *testing.T, n *Node) {
	t.Cleanup(n.checkClean)
	t.Cleanup(func() {
		systemctl(t, "disable", "--now", n.service)
		if err := os.Remove(rebootService); err != nil {
			t.Error(err)
		}
		systemctl(t, "daemon-reload")
		n.destroy()
	})
	before := readAll(t, n.Dir+"/before")
	if strings.HasPrefix(before, readAll(t, "/proc/sys/kernel/random/boot_id")) {
		t.Fatal("the machine was not rebooted")
	}
	n.waitUp()
	var summary statsapi.Summary
	for _, name := range []string{"guaranteed", "burstable"} {
		p := n.waitReady(name)
		s := p.Status.ContainerStatuses[0]
		if !strings.Contains(before, string(p.UID)+" ") || strings.Contains(before, s.ContainerID) {
			t.Errorf("pod %s is %s with container %s; before:\n%s", name, p.UID, s.ContainerID, before)
		}
		t.Logf("%s: %d restarts", name, s.RestartCount)
		values := []groupValue{sharesOf("512", "50"), quotaOf("50000", "50000 100000"), limitOf("67108864")}
		if name == "burstable" {
			values = []groupValue{
				sharesOf("256", "25"), quotaOf("50000", "50000 100000"), limitOf("67108864"),
				{"cpu", "cpu.cfs_burst_us", "20000", "cpu.max.burst", "20000"},
				{v2: "memory.oom.group", want2: "1"},
			}
		}
		n.requireValues(name, n.podGroup(p), values)
		if got := n.sh(name, "echo back"); got != "back\n" {
			t.Errorf("a command in %s: %q", name, got)
		}
		n.getJSON("/stats/summary", &summary)
		if podStats(t, &summary, p) == nil {
			t.Errorf("no figures of %s", name)
		}
	}
	n.remove("guaranteed.yaml")
	n.remove("burstable.yaml")
	n.waitGone("guaranteed")
	n.waitGone("burstable")
	n.requireNoPods()
}
