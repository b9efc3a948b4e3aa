package controller

import (
	discoveryv1 "k8s.io/api/discovery/v1"
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

// byService is the index of slices by the services that they say they are of, which several controllers ask of one
// informer: of each service that changes a search by labels would look at the slices of all in its namespace.
const byService = "services"

// IndexByService has an informer of slices index them by their services.
func IndexByService(slices cache.SharedIndexInformer) error {
	return Index(slices, byService, func(o any) ([]string, error) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] == "" {
			return nil, nil
		}
		return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
	})
}

// SlicesOf are the slices of a service that a manager keeps, by the index of [IndexByService].
func SlicesOf(slices cache.Indexer, key cache.ObjectName, manager string) []*discoveryv1.EndpointSlice {
	found, err := slices.ByIndex(byService, key.String())
	if err != nil {
		return nil // the index is made before it is asked
	}
	var all []*discoveryv1.EndpointSlice
	for _, o := range found {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelManagedBy] == manager {
			all = append(all, s)
		}
	}
	return all
}
