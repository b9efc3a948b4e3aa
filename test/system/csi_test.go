package system

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/csi/csitest"
)

const testDriver = "disk.example.com"

// csiDisk is a PersistentVolume of the driver for a claim of the same name.
func csiDisk(name, mode, more string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  capacity: {storage: 64Mi}
  accessModes: [%[2]s]
  claimRef: {namespace: default, name: %[1]s}
  csi: {driver: `+testDriver+`, volumeHandle: handle-%[1]s%[3]s
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s}
spec: {accessModes: [%[2]s], resources: {requests: {storage: 64Mi}}%[4]s
`, name, mode, volumeEnd(more), claimEnd(more))
}

// volumeEnd and claimEnd end the two with what is in block mode or not.
func volumeEnd(more string) string {
	if more == "Block" {
		return ", nodeStageSecretRef: {name: key, namespace: default}}\n  volumeMode: Block"
	}
	return ", " + more + "}"
}

func claimEnd(more string) string {
	if more == "Block" {
		return ", volumeMode: Block}"
	}
	return "}"
}

func claiming(name, claim, more string) string {
	return pod(name, "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: "+claim+"}}]"+runs(mountVol)+more)
}

const csiDriverObject = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: ` + testDriver + `}
spec: {podInfoOnMount: true, fsGroupPolicy: File, volumeLifecycleModes: [Persistent, Ephemeral]}
`

// TestCSIRepublish has a driver that wants to publish its volumes again, a claim's and an inline one: it is asked to.
func TestCSIRepublish(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("driver.yaml", strings.Replace(csiDriverObject, "podInfoOnMount: true", "podInfoOnMount: true, requiresRepublish: true", 1))
	n.apply("disks.yaml", csiDisk("data", "ReadWriteOnce", "fsType: ext4"))
	d := csitest.Start(t, csitest.Options{
		Name: testDriver, Registry: filepath.Join(n.Dir, "root/plugins_registry"), AnyVolume: true, NodeID: "node",
		Roots: []string{filepath.Join(n.Dir, "root")},
	})
	n.apply("claimed.yaml", claiming("claimed", "data", ""))
	n.apply("inline.yaml", pod("inline", "\n  volumes: [{name: v, csi: {driver: "+testDriver+"}}]"+runs(mountVol)))
	before := []*corev1.Pod{n.waitReady("claimed"), n.waitReady("inline")}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err := d.Await(ctx, func(s csitest.State) bool {
		published := map[string]int{}
		for _, c := range s.Calls {
			if c.RPC == "NodePublishVolume" && c.Code == codes.OK.String() {
				published[c.Volume]++
			}
		}
		twice := 0
		for _, times := range published {
			if times > 1 {
				twice++
			}
		}
		return twice == 2
	})
	if err != nil {
		t.Errorf("%v: %+v", err, d.Calls("NodePublishVolume"))
	}
	n.requireSame(before[0], n.pod("claimed"))
	n.requireSame(before[1], n.pod("inline"))
	for _, f := range []string{"claimed.yaml", "inline.yaml"} {
		n.remove(f)
	}
	n.requireNoPods()
}

// TestCSI has pods with volumes of a driver: of claims, shared, in block mode, by a path in it, inline, with an agent
// that is killed while they run, and while they are taken away.
func TestCSI(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.applySecret("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {pass: word}\n")
	n.apply("driver.yaml", csiDriverObject)
	n.apply("disks.yaml", csiDisk("data", "ReadWriteOnce", "fsType: ext4, nodeStageSecretRef: {name: key, namespace: default}")+
		csiDisk("raw", "ReadWriteOnce", "Block")+csiDisk("alone", "ReadWriteOncePod", "fsType: ext4, "+
		"nodeStageSecretRef: {name: key, namespace: default}"))
	n.apply("one.yaml", claiming("one", "data", ""))
	// It waits, and says for whom.
	n.described("one", "CSI driver is not registered: "+testDriver)
	d := csitest.Start(t, csitest.Options{
		Name: testDriver, Registry: filepath.Join(n.Dir, "root/plugins_registry"), Kind: csitest.Loop, AnyVolume: true, NodeID: "node",
		Roots: []string{filepath.Join(n.Dir, "root")},
		Node: []spec.NodeServiceCapability_RPC_Type{
			spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, spec.NodeServiceCapability_RPC_GET_VOLUME_STATS, csitest.VolumeCondition,
		},
		Secrets: map[string]map[string]string{"NodeStageVolume": {"pass": "word"}},
	})
	n.waitReady("one")
	n.sh("one", "grep -q ' /v ext4 ' /proc/mounts && echo kept > /v/file && mkdir /v/sub && echo below > /v/sub/f")
	n.apply("two.yaml", pod("two", "\n  securityContext: {fsGroup: 4321}\n  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"+
		runs("volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /s, subPath: sub}]\n")))
	n.apply("inline.yaml", pod("inline", "\n  volumes: [{name: v, csi: {driver: "+testDriver+", fsType: ext4, volumeAttributes: {a: b}, "+
		"nodePublishSecretRef: {name: key}}}, {name: r, csi: {driver: "+testDriver+", fsType: ext4, readOnly: true}}]"+
		runs("volumeMounts: [{name: v, mountPath: /v}, {name: r, mountPath: /r}]\n")))
	n.apply("raw.yaml", pod("raw", "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: raw}}]"+
		runs("volumeDevices: [{name: v, devicePath: /dev/raw}]\n")))
	n.apply("alone.yaml", claiming("alone", "alone", ""))
	before := n.waitReady("two")
	for _, name := range []string{"inline", "raw", "alone"} {
		n.waitReady(name)
	}
	if got := n.sh("two", "cat /v/file /s/f; stat -c %g /v"); got != "kept\nbelow\n4321\n" {
		t.Errorf("the shared volume has %q", got)
	}
	if got := n.sh("raw", "echo raw | dd of=/dev/raw conv=notrunc 2>/dev/null; sync; head -c 3 /dev/raw"); got != "raw" {
		t.Errorf("the device has %q", got)
	}
	if got := n.sh("inline", "echo mine > /v/file; touch /r/file 2>/dev/null || echo readonly"); got != "readonly\n" {
		t.Errorf("the inline volumes: %q", got)
	}

	// A second pod waits for a volume that one pod has for itself.
	n.apply("later.yaml", claiming("later", "alone", ""))
	n.described("later", "its access mode is ReadWriteOncePod, and pod default/alone-node has it")
	n.remove("alone.yaml")
	n.waitReady("later")

	// Nothing happens to volumes while no agent is there, and nothing when the next one comes.
	calls := len(d.Calls("NodeUnpublishVolume", "NodeUnstageVolume"))
	n.kill()
	if !slices.ContainsFunc(n.mounts(), func(m string) bool { return strings.Contains(m, "kubernetes.io~csi") }) {
		t.Error("pods that run without an agent have no volumes")
	}
	n.start()
	n.requireSame(before, n.waitReady("two"))
	if got := n.sh("two", "cat /v/file"); got != "kept\n" {
		t.Errorf("after the restart the volume has %q", got)
	}
	if now := len(d.Calls("NodeUnpublishVolume", "NodeUnstageVolume")); now != calls {
		t.Errorf("%d volumes were taken away by a restart", now-calls)
	}
	n.eventually("the statistics of the volume", func() error {
		page, of := n.metrics("/metrics"), map[string]string{"namespace": "default", "persistentvolumeclaim": "data"}
		capacity, ok := page.find("kubelet_volume_stats_capacity_bytes", of)
		ill, told := page.find("kubelet_volume_stats_health_status_abnormal", of)
		if !ok || capacity <= 0 || !told || ill != 0 {
			return fmt.Errorf("capacity %v (%t), abnormal %v (%t)", capacity, ok, ill, told)
		}
		return nil
	})

	// Taken away by an agent that is killed at it, and by the next.
	for _, f := range []string{"one.yaml", "two.yaml", "inline.yaml", "raw.yaml"} {
		n.remove(f)
	}
	n.kill()
	n.start()
	n.remove("later.yaml")
	for _, name := range []string{"one", "two", "inline", "raw", "later"} {
		n.waitGone(name)
	}
	n.requireNoPods()
	n.eventually("nothing to be staged", func() error {
		for id, v := range d.State().Volumes {
			if v.Stage != nil || len(v.Targets) > 0 {
				return fmt.Errorf("%s: staged %v, published %v", id, v.Stage, v.Targets)
			}
		}
		return nil
	})
	n.apply("one.yaml", claiming("one", "data", ""))
	n.waitReady("one")
	if got := n.sh("one", "cat /v/file"); got != "kept\n" {
		t.Errorf("the volume has %q", got)
	}
	n.remove("one.yaml")
	n.waitGone("one")
	n.requireNoPods()
	if left, err := filepath.Glob(filepath.Join(n.Dir, "root/plugins/kubernetes.io/csi/*/*/*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// described waits until describe says something of a pod.
func (n *Node) described(pod, text string) {
	n.t.Helper()
	n.eventually("pod "+pod+" to say what it waits for", func() error {
		// A manifest that was just written need not have been read.
		if got, stderr, _ := n.berth("describe", pod); !strings.Contains(got, text) {
			return fmt.Errorf("no %q in:\n%s%s", text, got, stderr)
		}
		return nil
	})
}
