package agent

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pinning"
	"github.com/berth-node/berth/agent/plugin"
	"github.com/berth-node/berth/csi/csitest"
)

// A pod is not taken in for a volume that its driver cannot have any more, nor for one that another pod has for itself.
func TestAdmitVolumes(t *testing.T) {
	d := csitest.Start(t, csitest.Options{MaxVolumes: 2})
	stores := new(object.Stores)
	objects := stores.Of(desired.File)
	v, err := openCSI(csiSettings{place: config.Place{RootDir: t.TempDir()}, node: "node"}, stores, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.volumes.Close(); v.drivers.Close() })
	o := d.Options()
	if err := (csiPlugins{v.drivers}).Register(t.Context(), plugin.Plugin{Name: o.Name, Endpoint: o.Socket, Versions: []string{"1.0.0"}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-v.freed:
	default:
		t.Error("pods that wait for the driver hear nothing of it")
	}
	for _, name := range []string{"a", "b", "c"} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		if name == "a" {
			pv.Spec.AccessModes[0] = corev1.ReadWriteOncePod
		}
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: o.Name, VolumeHandle: name}
		objects.Put(object.RefTo(object.PersistentVolume, "", name), pv)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
		claim.Spec.VolumeName, claim.Spec.AccessModes = name, pv.Spec.AccessModes
		objects.Put(object.RefTo(object.PersistentVolumeClaim, "default", name), claim)
	}
	admit := func(uid types.UID, ran bool, reason string, claims ...string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "default", UID: uid}}
		for _, c := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
			}})
		}
		err := v.Admit(p, ran)
		refused, _ := errors.AsType[*pinning.Refusal](err)
		if reason == "" && err != nil || reason != "" && (refused == nil || refused.Reason != reason) {
			t.Errorf("%s: %v", uid, err)
		}
	}
	admit("1", false, "", "a")
	admit("2", false, reasonVolumeInUse, "a")
	admit("3", false, "", "b")
	admit("4", false, "", "b") // it is there
	admit("5", false, reasonVolumeLimit, "c")
	admit("6", true, "", "c") // it runs already
	if err := v.Release(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	admit("2", false, reasonVolumeLimit, "a")
	if err := v.Synced(func(uid types.UID) bool { return uid == "3" }); err != nil {
		t.Fatal(err)
	}
	admit("2", false, "", "a")
	admit("7", false, "") // it has no volumes
}

// TestRenews wants a pod's volumes of claims to be published again where their driver says so.
func TestRenews(t *testing.T) {
	stores := new(object.Stores)
	objects := stores.Of(desired.File)
	v, err := openCSI(csiSettings{place: config.Place{RootDir: t.TempDir()}, node: "node"}, stores, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.volumes.Close(); v.drivers.Close() })
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "a"}
	objects.Put(object.RefTo(object.PersistentVolume, "", "a"), pv)
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}
	claim.Spec.VolumeName = "a"
	objects.Put(object.RefTo(object.PersistentVolumeClaim, "default", "a"), claim)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"},
	}}}
	if v.Renews(p) {
		t.Error("without a CSIDriver object")
	}
	yes := true
	o := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{RequiresRepublish: &yes}}
	objects.Put(object.RefTo(object.CSIDriver, "", "d"), o)
	if !v.Renews(p) {
		t.Error("its driver wants it")
	}
}
