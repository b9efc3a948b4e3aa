package system

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const localClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: local.csi.berth.node
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {type: loop}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: local
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 32Mi}}
`

// TestLocalStorage has claims and pods get volumes of the agent's own driver, with nothing beside the manifests: two
// pods have the volume of one claim, the agent is killed, and what a pod wrote is there. In the end nothing is left of
// them.
func TestLocalStorage(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--volume-delete-grace=0s")
	images := filepath.Join(n.Dir, "root/csi-local/images")
	if _, err := os.Lstat(filepath.Dir(images)); err == nil {
		t.Error("the driver has started, and nobody asked for it")
	}
	n.apply("claim.yaml", localClass)
	n.apply("one.yaml", mounting("one", "data"))
	n.waitReady("one")
	n.apply("two.yaml", mounting("two", "data"))
	n.waitReady("two")
	n.sh("one", "echo first > /v/file && sync")
	if got := n.sh("two", "cat /v/file"); got != "first\n" {
		t.Errorf("the other pod reads %q", got)
	}
	n.kill()
	n.apply("own.yaml", pod("own", "\n  volumes: [{name: v, csi: {driver: local.csi.berth.node, volumeAttributes: {size: 4Mi}}}]"+runs(mountVol)))
	n.start()
	n.waitReady("own")
	n.sh("own", "echo own > /v/file")
	n.sh("one", "echo second >> /v/file && sync")
	for _, name := range []string{"one", "two"} {
		n.remove(name + ".yaml")
		n.waitGone(name)
	}
	n.apply("two.yaml", mounting("two", "data"))
	n.waitReady("two")
	if got := n.sh("two", "cat /v/file"); got != "first\nsecond\n" {
		t.Errorf("after the agent was killed the volume has %q", got)
	}
	n.stop()
	n.start()
	if out, stderr, code := n.berth("volumes", "check"); code != 0 {
		t.Errorf("berth volumes check: %s%s", out, stderr)
	}
	if out, stderr, code := n.berth("volumes"); code != 0 || !strings.Contains(out, "local.csi.berth.node") {
		t.Errorf("berth volumes: %s%s", out, stderr)
	}

	// A kill while the volume goes is one more thing that nothing may be left of.
	for _, name := range []string{"two", "own"} {
		n.remove(name + ".yaml")
	}
	n.kill()
	n.start()
	n.waitGone("two")
	n.waitGone("own")
	n.remove("claim.yaml")
	n.eventually("the volumes to be deleted", func() error {
		for _, dir := range []string{images, filepath.Join(n.Dir, "root/csi-local/volumes"), filepath.Join(n.Dir, "root/csi-local/records/volumes")} {
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				return errors.Join(err, fmt.Errorf("%s has %v", dir, left))
			}
		}
		return nil
	})
	requireNoLoops(t, n)
}

// TestLocalStoragePurged has a node be purged while a pod has a volume: the volume is taken away from the pod, stays
// with its data, and is found again by the same claim.
func TestLocalStoragePurged(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("claim.yaml", localClass)
	n.apply("one.yaml", mounting("one", "data"))
	n.waitReady("one")
	n.sh("one", "echo kept > /v/file && sync")
	n.kill()
	purge := func() string {
		out, err := exec.Command(bin("berth"), append([]string{"purge", "--yes"}, n.dirArgs()...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("berth purge: %v\n%s", err, out)
		}
		return string(out)
	}
	if out := purge(); !strings.Contains(out, "volumes of local.csi.berth.node stay") {
		t.Errorf("the purge does not say that volumes stay:\n%s", out)
	}
	requireNoLoops(t, n)
	if left, err := os.ReadDir(filepath.Join(n.Dir, "root")); err != nil || len(left) != 1 || left[0].Name() != "csi-local" {
		t.Errorf("the root directory has %v (%v)", left, err)
	}
	n.start()
	n.waitReady("one")
	if got := n.sh("one", "cat /v/file"); got != "kept\n" {
		t.Errorf("after the purge the volume has %q", got)
	}
	for _, f := range []string{"one.yaml", "claim.yaml"} {
		n.remove(f)
	}
	n.waitGone("one")
	n.eventually("the volume to be given up", func() error { // not while the claim is thought to be there
		if out, stderr, code := n.berth("volumes", "delete", "data"); code != 0 {
			return fmt.Errorf("%s%s", out, stderr)
		}
		return nil
	})
	records := filepath.Join(n.Dir, "root/csi-local/records/volumes")
	n.eventually("the volume to be deleted", func() error {
		left, err := os.ReadDir(records)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there are %v", left)
		}
		return err
	})
	n.kill()
	purge()
	if _, err := os.Lstat(filepath.Join(n.Dir, "root")); err == nil {
		t.Error("the root directory is left")
	}
}

// requireNoLoops waits until no image of a node has a loop device. A process of another node that has just begun has a
// copy of every mount until it has a root of its own, and the kernel clears a device when the last mount of it goes.
func requireNoLoops(t *testing.T, n *Node) {
	t.Helper()
	n.eventually("the loop devices to be cleared", func() error {
		loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		for _, f := range loops {
			if file, readErr := os.ReadFile(f); readErr == nil && strings.HasPrefix(string(file), n.Dir+"/") {
				err = errors.Join(err, fmt.Errorf("%s is left: %s", f, file))
			}
		}
		return err
	})
}

const localGroups = `apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: together, annotations: {groupsnapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: local.csi.berth.node
deletionPolicy: Delete
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: at-once}
driverName: local.csi.berth.node
parameters: {trim: mount}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: local.csi.berth.node
parameters: {type: loop}
`

const localGroup = `apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: nightly}
spec: {source: {selector: {matchLabels: {app: db}}}}
`

// TestGroupSnapshot has the agent's own driver make snapshots of two claims at one moment while a pod writes to both,
// pods get volumes of them, the agent be killed, and a volume be changed by its VolumeAttributesClass; and all go.
func TestGroupSnapshot(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--volume-delete-grace=0s")
	n.apply("classes.yaml", localGroups)
	labelled := func(name, more string) string {
		return strings.Replace(madeClaim(name, "16Mi", more), "metadata: {name: "+name+"}", "metadata: {name: "+name+", labels: {app: db}}", 1)
	}
	n.apply("claims.yaml", labelled("one", "")+labelled("two", ""))
	n.apply("writer.yaml", pod("writer", "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: one}}, {name: w, persistentVolumeClaim: {claimName: two}}]"+
		runs("volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]")))
	n.waitReady("writer")
	n.sh("writer", "echo first > /v/file; echo first > /w/file; sync")
	n.apply("group.yaml", localGroup)
	n.requireEvents("VolumeGroupSnapshot/nightly", "GroupSnapshotCreated", "GroupSnapshotReady")
	n.sh("writer", "echo second > /v/file; echo second > /w/file; sync")
	n.kill()
	n.start()
	restored := ""
	for _, of := range []string{"one", "two"} {
		restored += madeClaim("then-"+of, "16Mi", "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: nightly-"+of+"}\n")
		n.apply("then-"+of+".yaml", mounting("then-"+of, "then-"+of))
	}
	n.apply("restored.yaml", restored)
	// A volume of a pod's own is filled, too.
	n.apply("own.yaml", pod("own", "\n  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], "+
		"resources: {requests: {storage: 16Mi}, limits: {storage: 64Mi}}, dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, "+
		"name: nightly-one}}}}}]"+runs(mountVol)))
	for _, name := range []string{"then-one", "then-two", "own"} {
		n.waitReady(name)
		if got := n.sh(name, "cat /v/file"); got != "first\n" {
			t.Errorf("%s has %q", name, got)
		}
	}
	n.apply("claims.yaml", labelled("one", "  volumeAttributesClassName: at-once\n")+labelled("two", "  volumeAttributesClassName: none-such\n"))
	n.requireEvents("PersistentVolumeClaim/one", "VolumeModify", "VolumeModifySuccessful")
	n.requireEvents("PersistentVolumeClaim/two", "VolumeModifyFailed")
	out := n.must("volumes")
	for _, want := range []string{"default/nightly-one", "of default/nightly, of volume two", "at-once", "there is none"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	pods := []string{"writer", "then-one", "then-two", "own"}
	for _, name := range pods {
		n.remove(name + ".yaml")
	}
	for _, name := range pods {
		n.waitGone(name)
	}
	for _, f := range []string{"group.yaml", "restored.yaml", "claims.yaml"} {
		n.remove(f)
	}
	n.eventually("nothing to be left", func() error {
		for _, dir := range []string{"images", "records/volumes", "records/snapshots", "records/groups"} {
			if left, err := os.ReadDir(filepath.Join(n.Dir, "root/csi-local", dir)); err != nil || len(left) > 0 {
				return errors.Join(err, fmt.Errorf("%s has %v", dir, left))
			}
		}
		return nil
	})
	requireNoLoops(t, n)
}
