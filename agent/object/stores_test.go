package object

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

type from bool

func (f from) Cluster() bool { return bool(f) }

// TestStores wants an object of one origin to be no one else's.
func TestStores(t *testing.T) {
	var s Stores
	s.Of(from(false)).Put(RefTo(Secret, "default", "a"), &corev1.Secret{})
	if _, err := s.Of(from(true)).Secret("default", "a"); err == nil {
		t.Error("a pod of the API server has a manifest's Secret")
	}
	if _, err := s.Of(from(false)).Secret("default", "a"); err != nil {
		t.Error(err)
	}
}
