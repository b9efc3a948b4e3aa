package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/cache"
)

// ByNode is the index of pods by the nodes that they are bound to, which several controllers ask of one informer.
const ByNode = "nodes"

// IndexByNode has an informer of pods index them by their nodes: nodes say every few seconds that they live, and there
// may be a hundred thousand pods on others.
func IndexByNode(pods cache.SharedIndexInformer) error {
	return Index(pods, ByNode, func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			return []string{p.Spec.NodeName}, nil
		}
		return nil, nil
	})
}

// Index has an informer, which several controllers have in common, index its objects, if none of them has already.
func Index(of cache.SharedIndexInformer, name string, by cache.IndexFunc) error {
	if _, there := of.GetIndexer().GetIndexers()[name]; there {
		return nil
	}
	if err := of.AddIndexers(cache.Indexers{name: by}); err != nil {
		return fmt.Errorf("index objects by %s: %w", name, err)
	}
	return nil
}

// PodsOn are the pods that are bound to a node, by the index of [IndexByNode].
func PodsOn(pods cache.Indexer, node string) []*corev1.Pod {
	found, err := pods.ByIndex(ByNode, node)
	if err != nil {
		return nil // the index is made before it is asked
	}
	all := make([]*corev1.Pod, 0, len(found))
	for _, o := range found {
		if p, ok := o.(*corev1.Pod); ok {
			all = append(all, p)
		}
	}
	return all
}

// KeysOn are the keys of the pods that are bound to a node.
func KeysOn(pods cache.Indexer, node string) []cache.ObjectName {
	all := PodsOn(pods, node)
	keys := make([]cache.ObjectName, 0, len(all))
	for _, p := range all {
		keys = append(keys, cache.MetaObjectToName(p))
	}
	return keys
}

// byLabel is the index of pods by each label that they have.
const byLabel = "labels"

// IndexByLabel has an informer of pods index them by their labels: of 10,000 pods in a namespace each that changes has
// its services, budgets and autoscalers looked at, and each of those would look at all 10,000.
func IndexByLabel(pods cache.SharedIndexInformer) error {
	return Index(pods, byLabel, func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok {
			return LabelKeys(p), nil
		}
		return nil, nil
	})
}

// LabelKeys are those of an object's labels in an index.
func LabelKeys(m metav1.Object) []string {
	keys := make([]string, 0, len(m.GetLabels())+1)
	for name, value := range m.GetLabels() {
		keys = append(keys, labelKey(m.GetNamespace(), name, value))
	}
	return keys
}

// labelKey is that of a label in the index, below a namespace or the key of another label. None of its parts may have
// such a mark in it.
func labelKey(below, name, value string) string { return below + "|" + name + "|" + value }

// Narrowed are the objects of a namespace that a selector may select, by an index that has [LabelKeys]: of the labels
// that they have to have those are found that have the one which the fewest have. Where they have to have none, all
// are, by an index that has the namespace.
func Narrowed(in cache.Indexer, byLabel, byNamespace, namespace string, s labels.Selector) []any {
	wanted, selectable := s.Requirements()
	if !selectable {
		return nil
	}
	var found []any
	asked := false
	for _, r := range wanted {
		if len(r.ValuesUnsorted()) != 1 || r.Operator() != selection.Equals && r.Operator() != selection.DoubleEquals && r.Operator() != selection.In {
			continue
		}
		some, err := in.ByIndex(byLabel, labelKey(namespace, r.Key(), r.ValuesUnsorted()[0]))
		if err != nil {
			return nil // the index is made before it is asked
		}
		if !asked || len(some) < len(found) {
			found, asked = some, true
		}
		if len(found) == 0 {
			return nil
		}
	}
	if !asked {
		found, _ = in.ByIndex(byNamespace, namespace) // which is made before, too
	}
	return found
}

// PodsSelected are the pods of a namespace that a selector matches, by the index of [IndexByLabel].
func PodsSelected(pods cache.Indexer, namespace string, s labels.Selector) []*corev1.Pod {
	var all []*corev1.Pod
	for _, o := range Narrowed(pods, byLabel, cache.NamespaceIndex, namespace, s) {
		if p, ok := o.(*corev1.Pod); ok && s.Matches(labels.Set(p.Labels)) {
			all = append(all, p)
		}
	}
	return all
}
