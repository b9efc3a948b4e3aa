package endpointslice

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// ofSlice is the service of a slice that somebody else has changed.
func (k *keeper) ofSlice(before, after any) []cache.ObjectName {
	was, _ := before.(*discoveryv1.EndpointSlice)
	is, _ := after.(*discoveryv1.EndpointSlice)
	var keys []cache.ObjectName
	switch {
	case is == nil && was == nil:
	case is == nil:
		// Where this controller has deleted it, that is known.
		if k.reconciler.ManagedByController(was) && k.written.Has(was) && !k.written.HandleDeletion(was) {
			keys = append(keys, serviceOf(was)...)
		}
	case was == nil:
		if k.reconciler.ManagedByController(is) && k.written.ShouldSync(is) {
			keys = append(keys, serviceOf(is)...)
		}
	case !slices.Equal(serviceOf(was), serviceOf(is)):
		keys = append(serviceOf(was), serviceOf(is)...)
	case k.reconciler.ManagedByChanged(was, is) || k.reconciler.ManagedByController(is) && k.written.ShouldSync(is):
		keys = serviceOf(is)
	}
	return keys
}

func serviceOf(s *discoveryv1.EndpointSlice) []cache.ObjectName {
	name := s.Labels[discoveryv1.LabelServiceName]
	if name == "" {
		return nil
	}
	return []cache.ObjectName{{Namespace: s.Namespace, Name: name}}
}

// ofNode are the services whose endpoints are to be near other clients when nodes come, go or get ready, and those that
// have waited for a node.
func (k *keeper) ofNode(before, after any) []cache.ObjectName {
	was, _ := before.(*corev1.Node)
	is, _ := after.(*corev1.Node)
	if was != nil && is != nil && alike(was, is) {
		return nil
	}
	all, err := k.nodes.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	k.topology.SetNodes(klog.Logger{}, all)
	var keys []cache.ObjectName
	for _, s := range k.topology.GetOverloadedServices() {
		if key, err := cache.ParseObjectName(s); err == nil {
			keys = append(keys, key)
		}
	}
	if was == nil {
		k.mu.Lock()
		for key := range k.waiting {
			keys = append(keys, key)
		}
		k.mu.Unlock()
	}
	return keys
}

// alike says whether two states of a node make no difference for where endpoints are.
func alike(a, b *corev1.Node) bool {
	return isReady(a) == isReady(b) && a.Labels[corev1.LabelTopologyZone] == b.Labels[corev1.LabelTopologyZone] &&
		a.Status.Allocatable.Cpu().Equal(*b.Status.Allocatable.Cpu())
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
