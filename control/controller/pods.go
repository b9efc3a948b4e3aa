package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// PodsOn are the keys of the pods that are bound to a node.
func PodsOn(pods corelisters.PodLister, node *corev1.Node) []cache.ObjectName {
	all, err := pods.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	var keys []cache.ObjectName
	for _, p := range all {
		if p.Spec.NodeName == node.Name {
			keys = append(keys, cache.MetaObjectToName(p))
		}
	}
	return keys
}
