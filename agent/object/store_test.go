package object

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNamed wants a claim to have the volume that names it, as that is now.
func TestNamed(t *testing.T) {
	var s Store
	put := func(name, claim string) {
		t.Helper()
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if claim != "" {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: claim}
		}
		s.Put(RefTo(PersistentVolume, "", name), v)
	}
	for _, name := range []string{"a", "b"} {
		s.Put(RefTo(PersistentVolumeClaim, "default", name), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
	}
	want := func(claim, volume string) {
		t.Helper()
		if v, err := s.Volume("default", claim); err != nil || v.Name != volume {
			t.Errorf("claim %s has %v, %v", claim, v, err)
		}
	}
	fails := func(claim, why string) {
		t.Helper()
		if v, err := s.Volume("default", claim); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("claim %s has %v, %v", claim, v, err)
		}
	}
	fails("a", "not bound")
	put("one", "a")
	want("a", "one")
	put("two", "a")
	for range 20 {
		fails("a", `both persistentvolume "one" and "two" names it`)
	}
	put("one", "b")
	want("a", "two")
	want("b", "one")
	put("two", "")
	fails("a", "not bound")
	s.Put(RefTo(PersistentVolume, "", "one"), nil)
	fails("b", "not bound")
	if len(s.named) > 0 {
		t.Errorf("there is still %v", s.named)
	}
}

// TestContested wants a volume that several claims name to be nobody's, unless it names one of them.
func TestContested(t *testing.T) {
	var s Store
	volume := func(claim *corev1.ObjectReference) {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}}
		v.Spec.ClaimRef = claim
		s.Put(RefTo(PersistentVolume, "", "disk"), v)
	}
	claim := func(name, volume string) {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		c.Spec.VolumeName = volume
		s.Put(RefTo(PersistentVolumeClaim, "default", name), c)
	}
	has := func(claim, why string) {
		t.Helper()
		switch v, err := s.Volume("default", claim); {
		case why == "" && (err != nil || v.Name != "disk"):
			t.Errorf("claim %s has %v, %v", claim, v, err)
		case why != "" && (err == nil || !strings.Contains(err.Error(), why)):
			t.Errorf("claim %s has %v, %v, not %q", claim, v, err, why)
		}
	}
	volume(nil)
	claim("a", "disk")
	has("a", "")
	claim("b", "disk")
	for _, name := range []string{"a", "b"} {
		has(name, `spec.volumeName of both default/a and default/b names persistentvolume "disk"`)
	}
	volume(&corev1.ObjectReference{Namespace: "default", Name: "b"})
	has("a", "it is bound to default/b")
	has("b", "")
	volume(nil)
	claim("b", "other")
	has("a", "")
	claim("b", "disk")
	s.Put(RefTo(PersistentVolumeClaim, "default", "a"), nil)
	has("b", "")
	s.Put(RefTo(PersistentVolumeClaim, "default", "b"), nil)
	if len(s.naming) > 0 {
		t.Errorf("there is still %v", s.naming)
	}
}
