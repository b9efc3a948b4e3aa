package environment

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/pod/podtest"
)

// TestReadOnlyVolume wants containers to be kept from writing to what volumes say is for reading only, by themselves or
// by what a claim is bound to.
func TestReadOnlyVolume(t *testing.T) {
	_, m := newWorld(t, false)
	pod := podtest.New("web")
	for name, source := range map[string]corev1.PersistentVolumeSource{
		"bound": {NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}},
		"other": {CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "w"}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		m.cfg.Objects.Of(desired.File).Put(object.RefTo(object.PersistentVolumeClaim, pod.Namespace, name), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name},
		})
		m.cfg.Objects.Of(desired.File).Put(object.RefTo(object.PersistentVolume, "", name), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source},
		})
	}
	inline := corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "inline", VolumeSource: inline})
	e := m.Of(pod, nil)
	if err := e.Make(t.Context(), Wanted{}); err != nil {
		t.Fatal(err)
	}
	if is := e.ReadOnly(); !is["bound"] || !is["inline"] || is["other"] {
		t.Errorf("got %v", is)
	}
}
