package volume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNoKind(t *testing.T) {
	volume := func(s corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: s},
		}
	}
	for _, c := range []struct {
		bound *corev1.PersistentVolume
		says  string
	}{
		{nil, "not there yet"},
		{volume(corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{}}), "not there yet"},
		{volume(corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}}), "ebs.csi.aws.com alone"},
		{volume(corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{}}), "PersistentVolume disk has none"},
	} {
		if got := noKind(c.bound); !strings.Contains(got, c.says) {
			t.Errorf("%+v: %s", c.bound, got)
		}
	}
}
