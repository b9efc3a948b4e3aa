package system

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sidecarClasses are what an administrator writes for the driver. Nothing of it is to be attached; that it is asked for
// all the same has Kubernetes' attacher in it.
const sidecarClasses = `apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: local.csi.berth.node}
spec:
  attachRequired: true
  podInfoOnMount: true
  fsGroupPolicy: File
  storageCapacity: true
  volumeLifecycleModes: [Persistent, Ephemeral]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: local.csi.berth.node
reclaimPolicy: Delete
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
parameters: {type: loop, csi.storage.k8s.io/fstype: ` + fsType + `}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: local}
driver: local.csi.berth.node
deletionPolicy: Delete
`

// claimed is a claim of the class, and a pod that has it, wherever the scheduler puts it.
func claimed(name, size, source string) string {
	return `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ` + name + `}
spec:
  storageClassName: local
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: ` + size + `}}` + source + `
---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ` + image + `
    imagePullPolicy: Never
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: ` + name + `}}]
`
}

// sidecars starts the driver, and what Kubernetes' project has beside drivers: each as the service account that its own
// manifests make, of whose rights it has no more.
func (m *member) sidecars(dir string) (provisioner func() (kill func())) {
	m.t.Helper()
	m.manifests("sidecars")
	m.kubectlWith(sidecarClasses, "apply", "-f", "-")
	socket := filepath.Join(m.Dir, "csi.sock")
	m.beside(nil, bin("berth"), "csi-local", "--endpoint=unix://"+socket, "--data-dir="+filepath.Join(m.Dir, "csi"),
		"--node-id="+m.name, "--registration-dir="+filepath.Join(m.Dir, "root/plugins_registry"))
	m.awaits("csinode/"+m.name, `jsonpath={.spec.drivers[0].name}=local.csi.berth.node`)
	start := func(name string, args ...string) (kill func()) {
		args = append(args, "--kubeconfig="+m.account("default", name), "--csi-address="+socket, "--v=4", "--leader-election",
			"--leader-election-namespace=default")
		return m.beside([]string{"NODE_NAME=" + m.name, "NAMESPACE=default"}, filepath.Join(dir, name), args...)
	}
	m.beside(nil, filepath.Join(dir, "snapshot-controller"), "--v=4",
		"--kubeconfig="+m.account("kube-system", "snapshot-controller"))
	for _, name := range []string{"csi-attacher", "csi-resizer", "csi-snapshotter"} {
		start(name)
	}
	// Each node has its own provisioner, as the volumes are on the nodes, and says by it how much room there is.
	kubeconfig := m.account("default", "csi-provisioner")
	return func() (kill func()) {
		return m.beside([]string{"NODE_NAME=" + m.name, "NAMESPACE=default"}, filepath.Join(dir, "csi-provisioner"), "--v=4",
			"--kubeconfig="+kubeconfig, "--csi-address="+socket, "--node-deployment", "--enable-capacity", "--capacity-ownerref-level=-1")
	}
}

// TestSidecars has the CSI sidecars of Kubernetes' project do for claims of a cluster what the node does by itself for
// those of its manifests: volumes are made, attached, mounted, made larger, copied by snapshots and deleted.
func TestSidecars(t *testing.T) {
	dir := peerPrograms(t, "test-ecosystem")
	m := joined(t)
	provision := m.sidecars(dir)
	kill := provision()

	m.kubectlWith(claimed("data", "320Mi", ""), "apply", "-f", "-")
	m.awaits("pod/data", "condition=Ready")
	m.kubectl("exec", "data", "--", "sh", "-c", "echo kept > /v/file && sync")
	m.provisionedBySidecar("data")

	m.kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}`)
	m.awaits("pvc/data", "jsonpath={.status.capacity.storage}=640Mi")
	m.eventually("the file system to be larger", func() error {
		return m.spacious("data", 640<<20)
	})

	m.kubectlWith(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: then}
spec: {volumeSnapshotClassName: local, source: {persistentVolumeClaimName: data}}
`, "apply", "-f", "-")
	m.awaits("volumesnapshot/then", "jsonpath={.status.readyToUse}=true")
	m.kubectl("exec", "data", "--", "sh", "-c", "echo later > /v/file && sync")
	// The provisioner may die with a volume half asked for. What it has not finished the next one does, once.
	m.kubectlWith(claimed("again", "640Mi", "\n  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: then}"),
		"apply", "-f", "-")
	m.kubectl("patch", "pvc", "again", "-p", `{"metadata":{"annotations":{"seen":"yes"}}}`)
	kill()
	kill = provision()
	m.awaits("pod/again", "condition=Ready")
	if got := m.kubectl("exec", "again", "--", "cat", "/v/file"); got != "kept\n" {
		t.Errorf("what was restored has %q", got)
	}
	m.awaits("pod/data", "condition=Ready")
	m.kubectl("delete", "pod", "data", "again")
	m.kubectl("delete", "pvc", "data", "again")
	m.kubectl("delete", "volumesnapshot", "then")
	m.nothingProvisioned()
	kill()
	m.requireNoPods()
}

// provisionedBySidecar requires that a claim's volume is the sidecar's work, and that the node has made none itself.
func (m *member) provisionedBySidecar(claim string) {
	m.t.Helper()
	c, err := m.plane.Client.CoreV1().PersistentVolumeClaims("default").Get(m.t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	v, err := m.plane.Client.CoreV1().PersistentVolumes().Get(m.t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	if by := v.Annotations["pv.kubernetes.io/provisioned-by"]; by != "local.csi.berth.node" || c.Status.Phase != corev1.ClaimBound ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || v.Spec.NodeAffinity == nil {
		m.t.Errorf("the volume is provisioned by %q: %+v", by, v.Spec)
	}
	all, err := m.plane.Client.StorageV1().VolumeAttachments().List(m.t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 || !all.Items[0].Status.Attached || all.Items[0].Spec.NodeName != m.name {
		m.t.Errorf("attached: %+v, %v", all, err)
	}
	room, err := m.plane.Client.StorageV1().CSIStorageCapacities("default").List(m.t.Context(), metav1.ListOptions{})
	if err != nil || len(room.Items) == 0 || room.Items[0].Capacity.IsZero() {
		m.t.Errorf("the room that there is said to be: %+v, %v", room, err)
	}
	for _, own := range []string{"root/csi-local", "root/provision"} {
		if files := filesIn(m.t, filepath.Join(m.Dir, own)); len(files) > 0 {
			m.t.Errorf("the node has provisioned by itself: %v", files)
		}
	}
}

// nothingProvisioned waits until volumes, attachments and snapshots are gone from the cluster, and the data from the
// disk.
func (m *member) nothingProvisioned() {
	m.t.Helper()
	m.eventually("volumes to be gone", func() error {
		volumes, err := m.plane.Client.CoreV1().PersistentVolumes().List(m.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		attached, err := m.plane.Client.StorageV1().VolumeAttachments().List(m.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		left := m.kubectl("get", "volumesnapshotcontents,volumesnapshots", "-A", "-o", "name")
		if len(volumes.Items)+len(attached.Items)+len(left) > 0 {
			return fmt.Errorf("there are %+v, %+v, %s", volumes.Items, attached.Items, left)
		}
		for _, part := range []string{"images", "volumes"} {
			if files := filesIn(m.t, filepath.Join(m.Dir, "csi", part)); len(files) > 0 {
				return fmt.Errorf("on the disk is %v", files)
			}
		}
		return nil
	})
}

// filesIn are the regular files below a directory, which need not be there.
func filesIn(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return all
}
