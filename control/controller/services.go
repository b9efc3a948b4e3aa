package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	sliceutil "k8s.io/endpointslice/util"
)

// Services finds the services that pods are endpoints of.
type Services struct{ by Selecting[*corev1.Service] }

// NewServices has an informer of services index them by their selectors.
func NewServices(services cache.SharedIndexInformer) (Services, error) {
	by, err := SelectingServices(services)
	return Services{by}, err
}

// SelectingServices finds services by what they select. Those without a selector select nothing.
func SelectingServices(services cache.SharedIndexInformer) (Selecting[*corev1.Service], error) {
	return NewSelecting(services, func(s *corev1.Service) *metav1.LabelSelector {
		if len(s.Spec.Selector) == 0 {
			return nil
		}
		return &metav1.LabelSelector{MatchLabels: s.Spec.Selector}
	})
}

// Of are the keys of the services that a pod is an endpoint of, or was, if anything has changed of it that endpoints
// tell. Before is nil of a new pod, after of one that is gone.
func (s Services) Of(before, after any) []cache.ObjectName {
	about := sliceutil.GetPodUpdateProjectionKey(before, after)
	if about == nil {
		return nil
	}
	all, err := sliceutil.GetServicesToUpdate(selected{by: s.by, about: about}, about)
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

// selected lists the services that select a pod, or did, in place of all in its namespace.
type selected struct {
	corelisters.ServiceLister
	corelisters.ServiceNamespaceLister

	by    Selecting[*corev1.Service]
	about *sliceutil.PodProjectionKey
}

// Services implements [corelisters.ServiceLister].
func (s selected) Services(string) corelisters.ServiceNamespaceLister { return s }

// List implements both.
func (s selected) List(labels.Selector) ([]*corev1.Service, error) {
	var all []*corev1.Service
	for _, of := range []labels.Set{s.about.Labels, s.about.OldLabels} {
		all = slices.AppendSeq(all, s.by.All(s.about.Namespace, of))
	}
	return all, nil
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
