package system

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-node/berth/csi/csitest"
)

const provisionClasses = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: ` + testProvisioner + `
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: snap, annotations: {snapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: ` + testProvisioner + `
deletionPolicy: Delete
`

const testProvisioner = "maker.example.com"

func madeClaim(name, size, more string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s}\nspec:\n  accessModes: [ReadWriteOnce]\n"+
		"  resources: {requests: {storage: %s}}\n%s", name, size, more)
}

func mounting(name, claim string) string {
	return pod(name, "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: "+claim+"}}]"+runs(mountVol))
}

// requireEvents waits until all of these were told of an object.
func (n *Node) requireEvents(object string, reasons ...string) {
	n.t.Helper()
	n.eventually("the events of "+object, func() error {
		out := n.must("events", "-A")
		for _, reason := range reasons {
			told := false
			for line := range strings.Lines(out) {
				words := strings.Fields(line)
				told = told || slices.Contains(words, reason) && slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, object) })
			}
			if !told {
				return fmt.Errorf("%s is not among\n%s", reason, out)
			}
		}
		return nil
	})
}

// TestProvision has volumes be made for claims with a StorageClass: one that waits for its pod, a snapshot of it, one
// that is restored of that, one of a pod's own; and has a claim that was removed come back with its data.
func TestProvision(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("classes.yaml", provisionClasses)
	n.apply("claim.yaml", madeClaim("data", "16Mi", ""))
	n.requireEvents("PersistentVolumeClaim/data", "WaitForFirstConsumer") // which there is in one.yaml
	n.apply("one.yaml", mounting("one", "data"))
	d := csitest.Start(t, csitest.Options{
		Name: testProvisioner, Registry: filepath.Join(n.Dir, "root/plugins_registry"), NodeID: "node",
		Roots: []string{filepath.Join(n.Dir, "root")}, SnapshotCalls: 1,
	})
	n.waitReady("one")
	n.sh("one", "echo first > /v/file")
	n.apply("snapshot.yaml", "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: s}\n"+
		"spec: {source: {persistentVolumeClaimName: data}}\n")
	n.eventually("the snapshot", func() error {
		for _, s := range d.State().Snapshots {
			if s.Asked > 1 {
				return nil
			}
		}
		return errors.New("there is none that is ready")
	})
	n.sh("one", "echo second > /v/file")
	n.apply("restored.yaml", madeClaim("restored", "16Mi", "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}\n"))
	n.apply("two.yaml", mounting("two", "restored"))
	n.apply("own.yaml", pod("own", "\n  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], "+
		"resources: {requests: {storage: 16Mi}}}}}}]"+runs(mountVol)))
	n.waitReady("two")
	n.waitReady("own")
	if got := n.sh("two", "cat /v/file"); got != "first\n" {
		t.Errorf("what was restored has %q", got)
	}
	n.apply("claim.yaml", madeClaim("data", "24Mi", ""))
	n.eventually("the volume to be larger", func() error {
		for _, v := range d.State().Volumes {
			if v.Bytes == 24<<20 {
				return nil
			}
		}
		return errors.New("it is not")
	})

	n.requireEvents("PersistentVolumeClaim/data", "ProvisioningSucceeded", "VolumeResizeSuccessful")
	n.requireEvents("VolumeSnapshot/s", "SnapshotCreated", "SnapshotReady")
	n.apply("wrong.yaml", madeClaim("wrong", "16Mi", "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: nothing}\n"))
	n.apply("three.yaml", mounting("three", "wrong"))
	n.requireEvents("PersistentVolumeClaim/wrong", "ProvisioningFailed")
	for _, f := range []string{"three.yaml", "wrong.yaml"} {
		n.remove(f)
	}
	n.waitGone("three")

	// The claim goes, the agent is killed, and the claim comes back.
	n.remove("one.yaml")
	n.waitGone("one")
	n.remove("claim.yaml")
	n.kill()
	n.start()
	n.apply("claim.yaml", madeClaim("data", "24Mi", ""))
	n.apply("one.yaml", mounting("one", "data"))
	n.waitReady("one")
	if got := n.sh("one", "cat /v/file"); got != "second\n" {
		t.Errorf("the claim that came back has %q", got)
	}

	// What is of a pod goes with it, what is of a claim stays.
	n.remove("own.yaml")
	n.waitGone("own")
	n.eventually("the pod's own volume to be deleted", func() error {
		if have := len(d.State().Volumes); have != 2 {
			return fmt.Errorf("there are %d volumes", have)
		}
		return nil
	})
	for _, f := range []string{"one.yaml", "two.yaml", "claim.yaml", "restored.yaml", "snapshot.yaml"} {
		n.remove(f)
	}
	n.waitGone("one")
	n.waitGone("two")
	n.requireNoPods()
	n.eventually("the claims to be missed", func() error {
		if out := n.must("volumes"); strings.Count(out, "Missing (deleted in 1") < 2 {
			return errors.New(out)
		}
		return nil
	})
	if have := len(d.State().Volumes); have != 2 {
		t.Errorf("in their grace %d volumes are there", have)
	}
	for _, args := range []string{"check", "restore data", "delete data", "delete restored", "delete --snapshot s"} {
		if out, stderr, code := n.berth(append([]string{"volumes"}, strings.Fields(args)...)...); code != 0 {
			t.Errorf("berth volumes %s: %s%s", args, out, stderr)
		}
	}
	n.eventually("nothing to be left", func() error {
		if s := d.State(); len(s.Volumes)+len(s.Snapshots) > 0 {
			return fmt.Errorf("there are %v and %v", s.Volumes, s.Snapshots)
		}
		return nil
	})
}
