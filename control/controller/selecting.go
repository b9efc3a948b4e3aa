package controller

import (
	"iter"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/selector"
)

const (
	// bySelector is the index of objects by what their selectors ask for.
	bySelector = "selectors"
	// manyLabels is of how many labels of an object it is not asked for each pair.
	manyLabels = 20
)

// Selecting finds those objects whose selectors select some labels. There may be 10,000 of them in a namespace, and as
// many pods, each change of which leads here: to ask each of the ones about each of the others is to ask 100 million
// times.
//
// An object is found by the first label, or the first two, that its selector asks for. One that asks for no label of a
// value (but that it is none of some, say) is always asked.
type Selecting[T metav1.Object] struct {
	in cache.Indexer
	of func(T) *metav1.LabelSelector
}

// NewSelecting has an informer index its objects by the selectors that they have; nil: one that selects nothing.
func NewSelecting[T metav1.Object](informer cache.SharedIndexInformer, of func(T) *metav1.LabelSelector) (Selecting[T], error) {
	err := Index(informer, bySelector, func(o any) ([]string, error) {
		t, ok := o.(T)
		if !ok {
			return nil, nil
		}
		s := of(t)
		if s == nil {
			return nil, nil
		}
		names := slices.Sorted(maps.Keys(s.MatchLabels))
		key := t.GetNamespace()
		for _, name := range names[:min(2, len(names))] {
			key = labelKey(key, name, s.MatchLabels[name])
		}
		return []string{key}, nil
	})
	return Selecting[T]{informer.GetIndexer(), of}, err
}

// All are the objects of a namespace whose selectors select labels.
func (s Selecting[T]) All(namespace string, labels map[string]string) iter.Seq[T] {
	return func(yield func(T) bool) {
		for o := range s.asked(namespace, labels) {
			if t, ok := o.(T); ok && selector.Selects(s.of(t), labels) && !yield(t) {
				return
			}
		}
	}
}

// asked are the objects that may select labels.
func (s Selecting[T]) asked(namespace string, labels map[string]string) iter.Seq[any] {
	return func(yield func(any) bool) {
		if len(labels) > manyLabels {
			s.by(cache.NamespaceIndex, namespace, yield)
			return
		}
		names := slices.Sorted(maps.Keys(labels))
		for i, name := range names {
			one := labelKey(namespace, name, labels[name])
			if !s.by(bySelector, one, yield) {
				return
			}
			for _, other := range names[i+1:] {
				if !s.by(bySelector, labelKey(one, other, labels[other]), yield) {
					return
				}
			}
		}
		s.by(bySelector, namespace, yield)
	}
}

func (s Selecting[T]) by(index, key string, yield func(any) bool) bool {
	found, err := s.in.ByIndex(index, key)
	if err != nil {
		return true // the index is made before it is asked
	}
	for _, o := range found {
		if !yield(o) {
			return false
		}
	}
	return true
}
