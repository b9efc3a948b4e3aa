package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
)

// newInUseProtection has volumes, claims and attributes classes stay until nobody uses them: a controller takes the
// finalizers away.
func newInUseProtection(given) (checks, error) {
	finalizers := map[string]string{
		"persistentvolumes":                      "kubernetes.io/pv-protection",
		"persistentvolumeclaims":                 "kubernetes.io/pvc-protection",
		"volumeattributesclasses.storage.k8s.io": "kubernetes.io/vac-protection",
	}
	return checks{
		operations: onCreate(), resources: []string{"persistentvolumes", "persistentvolumeclaims", "volumeattributesclasses.storage.k8s.io"},
		admit: func(_ context.Context, a admission.Attributes) error {
			o, err := meta.Accessor(a.GetObject())
			if err != nil {
				return wrongType(a, a.GetObject())
			}
			if f := finalizers[resourceOf(a)]; !slices.Contains(o.GetFinalizers(), f) {
				o.SetFinalizers(append(o.GetFinalizers(), f))
			}
			return nil
		},
	}, nil
}
