package controller

import (
	"iter"
	"maps"
	"slices"
	"strings"

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
type Selecting struct {
	in cache.Indexer
	of func(any) *metav1.LabelSelector
}

// NewSelecting has an informer index its objects by the selectors that they have; nil: one that selects nothing.
func NewSelecting(informer cache.SharedIndexInformer, of func(any) *metav1.LabelSelector) (Selecting, error) {
	err := Index(informer, bySelector, func(o any) ([]string, error) {
		s := of(o)
		m, ok := o.(metav1.Object)
		if s == nil || !ok {
			return nil, nil
		}
		names := slices.Sorted(maps.Keys(s.MatchLabels))
		parts := []string{m.GetNamespace()}
		for _, name := range names[:min(2, len(names))] {
			parts = append(parts, labelPart(name, s.MatchLabels[name]))
		}
		return []string{strings.Join(parts, "")}, nil
	})
	return Selecting{informer.GetIndexer(), of}, err
}

// labelPart is that of a label in a key. None of its parts may have such a mark in it.
func labelPart(name, value string) string { return "|" + name + "|" + value }

// All are the objects of a namespace whose selectors select labels.
func (s Selecting) All(namespace string, labels map[string]string) iter.Seq[metav1.Object] {
	return func(yield func(metav1.Object) bool) {
		for o := range s.asked(namespace, labels) {
			if m, ok := o.(metav1.Object); ok && selector.Selects(s.of(o), labels) && !yield(m) {
				return
			}
		}
	}
}

// asked are the objects that may select labels.
func (s Selecting) asked(namespace string, labels map[string]string) iter.Seq[any] {
	return func(yield func(any) bool) {
		if len(labels) > manyLabels {
			s.by(cache.NamespaceIndex, namespace, yield)
			return
		}
		names := slices.Sorted(maps.Keys(labels))
		for i, name := range names {
			one := namespace + labelPart(name, labels[name])
			if !s.by(bySelector, one, yield) {
				return
			}
			for _, other := range names[i+1:] {
				if !s.by(bySelector, one+labelPart(other, labels[other]), yield) {
					return
				}
			}
		}
		s.by(bySelector, namespace, yield)
	}
}

func (s Selecting) by(index, key string, yield func(any) bool) bool {
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
