package system

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/csi/csitest"
)

// driverPod is a CSI driver that runs as drivers do in a cluster: in a privileged container that has the directories of
// the pods and of the drivers at their own paths, and whose mounts come out on the node.
func (n *Node) driverPod() string {
	root, dir := filepath.Join(n.Dir, "root"), filepath.Join(n.Dir, "driver")
	return pod("driver", `
  containers:
  - name: driver
    image: berth.test/busybox:1
    command: [/csidriver, -dir=`+dir+`, -name=`+testDriver+`, -socket=`+root+`/plugins/`+testDriver+`/csi.sock,
      -registry=`+root+`/plugins_registry, -kind=directory, -any-volume, -node-id=node]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: program, mountPath: /csidriver, readOnly: true}
    - {name: pods, mountPath: `+root+`/pods, mountPropagation: Bidirectional}
    - {name: plugins, mountPath: `+root+`/plugins, mountPropagation: Bidirectional}
    - {name: registry, mountPath: `+root+`/plugins_registry}
    - {name: own, mountPath: `+dir+`, mountPropagation: Bidirectional}
  volumes:
  - {name: program, hostPath: {path: `+bin("test/csidriver")+`, type: File}}
  - {name: pods, hostPath: {path: `+root+`/pods, type: Directory}}
  - {name: plugins, hostPath: {path: `+root+`/plugins, type: DirectoryOrCreate}}
  - {name: registry, hostPath: {path: `+root+`/plugins_registry, type: DirectoryOrCreate}}
  - {name: own, hostPath: {path: `+dir+`, type: DirectoryOrCreate}}`)
}

// csiMounts are those of volumes of drivers on the node.
func (n *Node) csiMounts() (out []string) {
	for _, m := range n.mounts() {
		if strings.Contains(m, "kubernetes.io~csi") || strings.Contains(m, "kubernetes.io/csi") {
			out = append(out, m)
		}
	}
	return out
}

// TestCSIDriverInPod has the driver of a pod's volume be a pod itself: it registers, its mounts are the node's, an
// agent that is killed finds both again, and the driver's pod may be made anew while the volume is in use, and while it
// is to be taken away.
func TestCSIDriverInPod(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.share("root")
	n.share("driver")
	n.start()
	n.apply("disks.yaml", csiDisk("data", "ReadWriteOnce", "volumeAttributes: {a: b}"))
	n.apply("one.yaml", claiming("one", "data", ""))
	n.described("one", "CSI driver is not registered: "+testDriver)
	n.apply("driver.yaml", n.driverPod())
	driver := n.waitReady("driver")
	one := n.waitReady("one")
	n.sh("one", "echo kept > /v/file")
	if len(n.csiMounts()) == 0 {
		t.Error("the driver's mounts did not come out on the node")
	}
	remote := csitest.Remote{Socket: filepath.Join(n.Dir, "driver/control.sock")}
	state, err := remote.State(t.Context())
	if err != nil || len(state.Volumes) != 1 {
		t.Errorf("the driver has %+v, %v", state.Volumes, err)
	}
	n.kill()
	n.start()
	n.requireSame(driver, n.waitReady("driver"))
	n.requireSame(one, n.waitReady("one"))
	if got := n.sh("one", "cat /v/file"); got != "kept\n" {
		t.Errorf("after the restart the volume has %q", got)
	}

	// The driver is made anew: what it has mounted stays, and it knows of it.
	n.remove("driver.yaml")
	n.waitGone("driver")
	if got := n.sh("one", "cat /v/file && echo more >> /v/file"); got != "kept\n" {
		t.Errorf("without its driver the volume has %q", got)
	}
	n.remove("one.yaml")
	n.described("one", "CSI driver is not registered: "+testDriver)
	n.apply("driver.yaml", n.driverPod())
	n.waitGone("one")
	n.eventually("nothing to be mounted", func() error {
		if left := n.csiMounts(); len(left) > 0 {
			return fmt.Errorf("mounted: %v", left)
		}
		return nil
	})
	n.apply("two.yaml", claiming("two", "data", ""))
	n.waitReady("two")
	if got := n.sh("two", "cat /v/file"); got != "kept\nmore\n" {
		t.Errorf("the volume has %q", got)
	}
	n.remove("two.yaml")
	n.waitGone("two")
	if out, stderr, code := n.berth("volumes", "check"); code != 0 {
		t.Errorf("berth volumes check: %s%s", out, stderr)
	}
	if state, err := remote.State(t.Context()); err != nil || len(state.Violations) > 0 {
		t.Errorf("the driver was called otherwise than the specification says: %v, %v", state.Violations, err)
	}
	n.remove("driver.yaml")
	n.waitGone("driver")
	n.requireNoPods()
	if left := n.csiMounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
	for _, p := range []string{"root/plugins/kubernetes.io/csi/*/*", "root/pods/*"} {
		if left, err := filepath.Glob(filepath.Join(n.Dir, p)); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(n.Dir, "root/plugins", testDriver)); err != nil { // the driver's own
		t.Error(err)
	}
}
