package environment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/volume"
)

// A pod of which nobody knows what it has keeps what it could have, and the others are given the rest.
func TestChooseVolumeBesideDamagedRecords(t *testing.T) {
	root := t.TempDir()
	objects := new(object.Stores)
	for name, class := range map[string]string{"fast-1": "fast", "fast-2": "fast", "slow-1": "slow"} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{StorageClassName: class}}
		objects.Of(desired.File).Put(object.RefTo(object.PersistentVolume, "", name), pv)
	}
	podOf := func(uid types.UID, class string) *corev1.Pod {
		template := &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), Namespace: "default", UID: uid}}
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}},
			{Name: "w"},
		}
		return pod
	}
	choose := func(class string, names ...string) (string, error) {
		pod, taken := podOf("new", class), volume.Taken{Names: map[string]bool{}, Unknown: []types.UID{"damaged"}}
		for _, n := range names {
			taken.Names[n] = true
		}
		return chooseVolume(root, objects, nil, pod, object.ClaimOf(pod, &pod.Spec.Volumes[0]), taken)
	}
	if err := os.MkdirAll(filepath.Join(root, "pods/damaged"), 0o750); err != nil {
		t.Fatal(err)
	}
	if got, err := choose("slow"); err == nil || !strings.Contains(err.Error(), "nobody knows which volumes the pod with the uid damaged has") {
		t.Errorf("without its definition: %q, %v", got, err)
	}
	if err := KeepDefinition(root, podOf("damaged", "fast")); err != nil {
		t.Fatal(err)
	}
	if got, err := choose("slow"); err != nil || got != "slow-1" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := choose("slow", "slow-1"); err == nil {
		t.Errorf("got what another pod has: %q", got)
	}
	if got, err := choose("fast"); err == nil || !strings.Contains(err.Error(), "[damaged] could have") {
		t.Errorf("got %q, %v", got, err)
	}
}
