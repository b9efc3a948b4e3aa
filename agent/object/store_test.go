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
