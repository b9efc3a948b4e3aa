package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const thirdParty = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: theirs}
provisioner: ` + testDriver + `
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + testDriver + `}
spec: {attachRequired: %t, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}
`

// theirs is a claim of the driver's.
func theirs(name, size, more string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {storageClassName: theirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: %s}}%s}
`, name, size, more)
}

const theirSnapshot = `---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: theirs}
driver: ` + testDriver + `
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: then}
spec: {volumeSnapshotClassName: theirs, source: {persistentVolumeClaimName: data}}
`

// theirDriver starts the driver of others, and returns what reads its calls, and what kills it.
func (n *Node) theirDriver(program string, args ...string) (calls func() string, kill func()) {
	n.t.Helper()
	log := filepath.Join(n.Dir, "driver.log")
	out, err := os.Create(log)
	if err != nil {
		n.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(program, append([]string{
		"-name=" + testDriver, "-socket=" + n.Dir + "/driver.sock", "-registry=" + n.Dir + "/root/plugins_registry",
	}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	n.t.Cleanup(kill)
	return func() string {
		data, _ := os.ReadFile(log)
		return string(data)
	}, kill
}

// TestThirdPartyDriver has pods with volumes of a CSI driver that others have written, with a registrar of its own:
// made for claims, attached or not, inline, in block mode, made larger, of a snapshot; the driver is killed, and starts
// again, while they are in use.
func TestThirdPartyDriver(t *testing.T) {
	program := os.Getenv("BERTH_THIRD_PARTY")
	if program == "" {
		t.Skip("needs a CSI driver of others: make csi-thirdparty")
	}
	for _, attach := range []bool{false, true} {
		t.Run(fmt.Sprintf("attach=%t", attach), func(t *testing.T) {
			startNode(t, "--volume-delete-grace=0s").thirdParty(program, attach)
		})
	}
}

func (n *Node) thirdParty(program string, attach bool) {
	args := []string{fmt.Sprintf("-attach=%t", attach)}
	calls, kill := n.theirDriver(program, args...)
	n.apply("class.yaml", fmt.Sprintf(thirdParty, attach))
	n.apply("claims.yaml", theirs("data", "1Gi", "")+theirs("raw", "1Gi", ", volumeMode: Block"))
	n.apply("one.yaml", claiming("one", "data", ""))
	n.apply("raw.yaml", pod("raw", "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: raw}}]"+
		runs("volumeDevices: [{name: v, devicePath: /dev/raw}]\n")))
	n.apply("inline.yaml", pod("inline", "\n  volumes: [{name: v, csi: {driver: "+testDriver+", volumeAttributes: {a: b}}}]"+runs(mountVol)))
	one := n.waitReady("one")
	raw := n.waitReady("raw")
	n.waitReady("inline")

	n.apply("claims.yaml", theirs("data", "2Gi", "")+theirs("raw", "1Gi", ", volumeMode: Block")+theirSnapshot+
		theirs("again", "2Gi", ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: then}"))
	n.apply("two.yaml", claiming("two", "again", ""))
	n.waitReady("two")
	n.eventually("the volume to be larger", func() error {
		if out := n.must("volumes"); !slices.ContainsFunc(strings.Split(out, "\n"), func(l string) bool {
			return strings.Contains(l, "default/data") && strings.Contains(l, "2GiB") && strings.Contains(l, "Ready")
		}) {
			return fmt.Errorf("there is\n%s", out)
		}
		return nil
	})
	want := []string{"registered true", "CreateSnapshot", "ControllerExpandVolume"}
	if attach {
		want = append(want, "ControllerPublishVolume")
	}
	for _, w := range want {
		if !strings.Contains(calls(), w) {
			n.t.Errorf("without %s:\n%s", w, calls())
		}
	}

	// What it had in memory is gone with it: it does not know the volumes that it is to take away.
	kill()
	calls, kill = n.theirDriver(program, args...)
	n.eventually("the driver to be registered again", func() error {
		if !strings.Contains(calls(), "registered true") {
			return fmt.Errorf("it says\n%s", calls())
		}
		return nil
	})
	n.requireSame(one, n.pod("one"))
	n.requireSame(raw, n.pod("raw"))
	for _, name := range []string{"one", "two", "raw", "inline"} {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	if !strings.Contains(calls(), "NodeUnpublishVolume") {
		n.t.Errorf("it was called to\n%s", calls())
	}
	n.remove("claims.yaml")
	n.eventually("the volumes to be deleted", func() error {
		if out := n.must("volumes"); strings.Contains(out, "default/") {
			return fmt.Errorf("there is\n%s", out)
		}
		return nil
	})
	n.remove("class.yaml")
	kill()
	n.requireNoPods()
	if left, err := filepath.Glob(filepath.Join(n.Dir, "root/plugins/kubernetes.io/csi/*/*/*")); err != nil || len(left) > 0 {
		n.t.Errorf("left: %v, %v", left, err)
	}
}
