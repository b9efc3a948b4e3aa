package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
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
