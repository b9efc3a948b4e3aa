package owned

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
	"github.com/berth-node/berth/control/selector"
)

// mostAsked is how many owners are looked at for an object that has none: each of them would adopt it, so that one is
// enough. Another one may be gone, or be another one of the name, of which a cache has not heard yet.
const mostAsked = 10

// Adopting finds owners that would adopt an object that has none.
type Adopting struct{ by controller.Selecting }

// NewAdopting has an informer of owners index them by their selectors: nil of one that adopts nothing.
func NewAdopting(owners cache.SharedIndexInformer, of func(any) *metav1.LabelSelector) (Adopting, error) {
	by, err := controller.NewSelecting(owners, func(o any) *metav1.LabelSelector {
		if m, ok := o.(metav1.Object); !ok || m.GetDeletionTimestamp() != nil {
			return nil
		}
		s := of(o)
		if selector.Empty(s) {
			return nil // it would adopt all there is
		}
		return s
	})
	return Adopting{by}, err
}

// Keys are those of owners that would adopt an object: all of some, if there are not many.
func (a Adopting) Keys(o metav1.Object) []cache.ObjectName {
	if len(o.GetLabels()) == 0 {
		return nil
	}
	var keys []cache.ObjectName
	for owner := range a.by.All(o.GetNamespace(), o.GetLabels()) {
		if keys = append(keys, cache.MetaObjectToName(owner)); len(keys) == mostAsked {
			break
		}
	}
	return keys
}
