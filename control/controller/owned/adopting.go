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

// Adopting finds owners that would adopt an object that has none: all of them, or some if there are many.
type Adopting func(o metav1.Object) []cache.ObjectName

// NewAdopting has an informer of owners index them by their selectors: nil of one that adopts nothing.
func NewAdopting[T metav1.Object](owners cache.SharedIndexInformer, of func(T) *metav1.LabelSelector) (Adopting, error) {
	by, err := controller.NewSelecting(owners, func(owner T) *metav1.LabelSelector {
		s := of(owner)
		if owner.GetDeletionTimestamp() != nil || selector.Empty(s) { // which would adopt all there is
			return nil
		}
		return s
	})
	return func(o metav1.Object) []cache.ObjectName {
		if len(o.GetLabels()) == 0 {
			return nil
		}
		var keys []cache.ObjectName
		for owner := range by.All(o.GetNamespace(), o.GetLabels()) {
			if keys = append(keys, cache.MetaObjectToName(owner)); len(keys) == mostAsked {
				break
			}
		}
		return keys
	}, err
}
