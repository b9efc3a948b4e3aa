package controller

import (
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	sliceutil "k8s.io/endpointslice/util"
)

// ServicesOf are the keys of the services that a pod is an endpoint of, or was, if anything has changed of it that
// endpoints tell. Before is nil of a new pod, after of one that is gone.
func ServicesOf(services corelisters.ServiceLister, before, after any) []cache.ObjectName {
	all, err := sliceutil.GetServicesToUpdate(services, sliceutil.GetPodUpdateProjectionKey(before, after))
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	keys := make([]cache.ObjectName, 0, len(all))
	for s := range all {
		if key, err := cache.ParseObjectName(s); err == nil {
			keys = append(keys, key)
		}
	}
	return keys
}
