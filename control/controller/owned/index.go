// Package owned is what controllers that keep objects for an owner have in common: finding what is the owner's,
// adopting and releasing it, making and ending pods, and seeing that a cache has not heard yet of what was written.
package owned

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const (
	byOwner  = "berth/owner"
	byOrphan = "berth/orphan"
)

// Index finds the objects of a cache by who controls them. A search by labels would look at all objects of a namespace,
// each time that one of them changes.
type Index[T metav1.Object] struct {
	cache cache.Indexer
}

// NewIndex has a cache indexed by owners. The cache may be one that others use, and that has this index already.
func NewIndex[T metav1.Object](informer cache.SharedIndexInformer) (Index[T], error) {
	i := Index[T]{informer.GetIndexer()}
	if _, has := i.cache.GetIndexers()[byOwner]; has {
		return i, nil
	}
	err := i.cache.AddIndexers(cache.Indexers{byOwner: ownerOf, byOrphan: orphanIn})
	if err != nil {
		return i, fmt.Errorf("index objects by their owners: %w", err)
	}
	return i, nil
}

func ownerOf(o any) ([]string, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	if c := metav1.GetControllerOfNoCopy(m); c != nil {
		return []string{string(c.UID)}, nil
	}
	return nil, nil
}

// orphanIn are the namespace of an object that nobody controls, and each label of it there.
func orphanIn(o any) ([]string, error) {
	m, err := meta.Accessor(o)
	if err != nil || metav1.GetControllerOfNoCopy(m) != nil {
		return nil, err
	}
	return append(controller.LabelKeys(m), m.GetNamespace()), nil
}

// Of are the objects that an owner controls.
func (i Index[T]) Of(owner types.UID) []T { return i.find(byOwner, string(owner)) }

// Orphans are the objects of a namespace that nobody controls and a selector may select. There may be thousands, and as
// many owners, each of which asks for them whenever it is looked at.
func (i Index[T]) Orphans(namespace string, s labels.Selector) []T {
	return typed[T](controller.Narrowed(i.cache, byOrphan, byOrphan, namespace, s))
}

func (i Index[T]) find(index, value string) []T {
	found, err := i.cache.ByIndex(index, value)
	if err != nil {
		return nil // there is this index
	}
	return typed[T](found)
}

func typed[T any](found []any) []T {
	all := make([]T, 0, len(found))
	for _, o := range found {
		if t, ok := o.(T); ok {
			all = append(all, t)
		}
	}
	return all
}

// Cache is what of a cache tells how far it is.
type Cache interface {
	GetByKey(key string) (any, bool, error)
	LastStoreSyncResourceVersion() string
}

// Cache is where the objects are found.
func (i Index[T]) Cache() Cache { return i.cache }

// reached says whether a cache has heard of a version. One whose versions cannot be compared counts as if it had: what
// is done then is done by what it has.
func reached(c Cache, version string) bool {
	order, err := resourceversion.CompareResourceVersion(c.LastStoreSyncResourceVersion(), version)
	return err != nil || order >= 0
}

// Keys leads from an object to the key of its owner, if that is of a kind; from one that nobody controls to the keys
// that orphan returns.
func Keys(kind schema.GroupVersionKind, orphan func(metav1.Object) []cache.ObjectName) func(any) []cache.ObjectName {
	return func(o any) []cache.ObjectName {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil
		}
		c := metav1.GetControllerOfNoCopy(m)
		if c == nil {
			if orphan == nil || m.GetDeletionTimestamp() != nil {
				return nil
			}
			return orphan(m)
		}
		if c.Kind != kind.Kind || !sameGroup(c.APIVersion, kind) {
			return nil
		}
		return []cache.ObjectName{{Namespace: m.GetNamespace(), Name: c.Name}}
	}
}

func sameGroup(version string, kind schema.GroupVersionKind) bool {
	v, err := schema.ParseGroupVersion(version)
	return err == nil && v.Group == kind.Group
}

// Key is that of an object itself.
func Key(o any) []cache.ObjectName {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil
	}
	return []cache.ObjectName{cache.MetaObjectToName(m)}
}

// Selector is a selector as it is used; one that cannot be read selects nothing.
func Selector(s *metav1.LabelSelector) labels.Selector {
	read, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return read
}

// Pods is an index of pods.
type Pods = Index[*corev1.Pod]
