package object

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func volumeOf(name, size string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"of": "a"}}}
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if change != nil {
		change(v)
	}
	return v
}

func TestChoose(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	template := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": "1"}}}
	template.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	template.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	vol := &corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}
	claim := ClaimOf(pod, vol)
	if claim.Name != "p-v" || claim.Namespace != "default" || claim.Labels["l"] != "1" || len(claim.OwnerReferences) != 1 || claim.OwnerReferences[0].UID != "u" {
		t.Errorf("the claim: %+v", claim.ObjectMeta)
	}

	var s Store
	if _, err := s.Choose(claim, nil, nil); err == nil || !strings.Contains(err.Error(), "there is no persistentvolume") {
		t.Errorf("without volumes: %v", err)
	}
	put := func(k Kind, o Object) { s.Put(RefTo(k, o.GetNamespace(), o.GetName()), o) }
	put(PersistentVolume, volumeOf("small", "1Gi", nil))
	put(PersistentVolume, volumeOf("big", "5Gi", nil))
	put(PersistentVolume, volumeOf("fits", "3Gi", nil))
	put(PersistentVolume, volumeOf("claimed", "2Gi", nil))
	put(PersistentVolume, volumeOf("others", "2Gi", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "mine"}
	}))
	put(PersistentVolume, volumeOf("elsewhere", "2Gi", func(v *corev1.PersistentVolume) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"7"}}},
		}}}}
	}))
	mine := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: "default"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "claimed"}}
	put(PersistentVolumeClaim, mine)

	choose := func(want string, node map[string]string, taken ...string) {
		t.Helper()
		all := map[string]bool{}
		for _, name := range taken {
			all[name] = true
		}
		v, err := s.Choose(claim, node, all)
		if want == "" {
			if err == nil {
				t.Errorf("%v: got %s", taken, v.Name)
			}
			return
		}
		if err != nil || v.Name != want {
			t.Errorf("%v: got %v, %v, want %s", taken, v, err, want)
		}
	}
	choose("fits", nil)
	choose("elsewhere", map[string]string{"rack": "7"})
	choose("big", nil, "fits")
	choose("", nil, "fits", "big")
	_, err := s.Choose(claim, nil, map[string]bool{"fits": true, "big": true})
	for _, why := range []string{`and 1 more`, `"claimed": it is bound to default/mine`, `"fits": it is bound to the claim of another pod's`, `"elsewhere": its nodeAffinity`} {
		if !strings.Contains(err.Error(), why) {
			t.Errorf("%q is not in %v", why, err)
		}
	}

	// Who is named counts, in either direction.
	put(PersistentVolume, volumeOf("reserved", "9Gi", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "p-v"}
	}))
	choose("reserved", nil)
	claim.Spec.VolumeName = "big"
	choose("big", nil)
	choose("", nil, "big")
	claim.Spec.VolumeName = "nowhere"
	var missing *NotFound
	if _, err := s.Choose(claim, nil, nil); !errors.As(err, &missing) || missing.Ref.Name != "nowhere" {
		t.Errorf("a volume that is not there: %v", err)
	}
	claim.Spec.VolumeName = ""
	claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"of": "b"}}
	choose("", nil)
	claim.Spec.Selector = nil

	put(PersistentVolumeClaim, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-v", Namespace: "default"}})
	if _, err := s.Choose(claim, nil, nil); err == nil || !strings.Contains(err.Error(), "was not made for this pod") {
		t.Errorf("a claim of the same name: %v", err)
	}
}
