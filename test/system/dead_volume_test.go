package system

import (
	"fmt"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-node/berth/csi/csitest"
)

// dead mounts a file system at path that never answers, until the function is called, as a network file system whose
// server is gone.
func dead(t *testing.T, path string) (end func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			unix.Close(fd)
			_ = unix.Unmount(path, unix.MNT_DETACH) // else somebody has
		}
	}
	t.Cleanup(end)
	if err := unix.Mount("dead", path, "fuse.dead", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		t.Fatal(err)
	}
	return end
}

// TestDeadVolume has a volume of a pod not answer any more, and a host path of another one: they are named, and nothing
// else is held up, neither the agent, as it runs, starts and ends, nor its API, nor other pods. The pods can be removed
// meanwhile.
func TestDeadVolume(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("driver.yaml", csiDriverObject)
	n.apply("disks.yaml", csiDisk("sick", "ReadWriteOnce", "fsType: ext4")+csiDisk("well", "ReadWriteOnce", "fsType: ext4"))
	csitest.Start(t, csitest.Options{
		Name: testDriver, Registry: filepath.Join(n.Dir, "root/plugins_registry"), AnyVolume: true, NodeID: "node",
		Node: []spec.NodeServiceCapability_RPC_Type{spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	})
	host := mkdir(t, n.Dir, "host")
	n.apply("sick.yaml", claiming("sick", "sick", ""))
	n.apply("well.yaml", claiming("well", "well", ""))
	n.waitReady("sick")
	before := n.waitReady("well")
	targets, err := filepath.Glob(filepath.Join(n.Dir, "root/pods/*/volumes/kubernetes.io~csi/sick/mount"))
	if err != nil || len(targets) != 1 {
		t.Fatalf("published at %v, %v", targets, err)
	}
	endVolume, endHost := dead(t, targets[0]), dead(t, host)

	summarized := func() {
		t.Helper()
		var s statsapi.Summary
		n.getJSON("/stats/summary", &s)
		if len(s.Pods) < 2 {
			t.Errorf("the summary has %d pods", len(s.Pods))
		}
	}
	summarized()
	n.apply("host.yaml", pod("host", volume("hostPath: {path: "+host+"}")+runs(mountVol)))
	n.apply("fresh.yaml", claiming("fresh", "well", ""))
	n.waitReady("fresh")
	n.described("host", "host path "+host+" does not answer")
	summarized()
	n.stop()
	n.start()
	n.requireSame(before, n.waitReady("well"))
	summarized()
	n.remove("sick.yaml")
	n.remove("host.yaml")
	n.waitGone("sick")
	n.waitGone("host")
	n.remove("well.yaml")
	n.remove("fresh.yaml")
	n.waitGone("well")
	n.waitGone("fresh")
	endVolume()
	endHost()
	n.requireNoPods()
}
