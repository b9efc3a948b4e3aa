package desired

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestUnsupportedPathsExist(t *testing.T) {
	for _, e := range slices.Concat(unsupported, unsupportedStatic, ignoredFields) {
		want := 1
		if strings.HasPrefix(e.path, "spec.containers[*]") {
			want = 3 // init and ephemeral containers
		}
		if e.reason == "" || len(rules([]entry{e})) != want {
			t.Errorf("%s: no such field, or no reason", e.path)
		}
	}
}

func TestUnsupportedByOrigin(t *testing.T) {
	yes := true
	pod := &corev1.Pod{}
	pod.Spec.ServiceAccountName, pod.Spec.AutomountServiceAccountToken = "robot", &yes
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}}
	pod.Spec.SchedulerName = "theirs"
	pod.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
	}}}}
	if errs := Unsupported(pod); len(errs) != 5 || len(IgnoredIn(pod)) != 1 {
		t.Errorf("a static pod: %v, ignored %v", errs, IgnoredIn(pod))
	}
	pod.Annotations = map[string]string{AnnotationSource: string(API)}
	if errs := Unsupported(pod); len(errs) != 0 || len(IgnoredIn(pod)) != 0 {
		t.Errorf("a pod of an API server: %v, ignored %v", errs, IgnoredIn(pod))
	}
	for range 7 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}})
	}
	errs := Unsupported(pod)
	if len(errs) != 7 || errs[0].Field != "spec.volumes[1].rbd" || !strings.HasPrefix(errs[0].Detail, "the CSI driver rbd.csi.ceph.com") {
		t.Errorf("refused for %v", errs)
	}
}
