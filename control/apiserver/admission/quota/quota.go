// Package quota tells what objects count for in a ResourceQuota: pods with their resources and scopes, claims with
// their storage and classes, services by their kind, and others by their number.
package quota

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	library "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// NewConfiguration has the evaluators of what counts for more than its number; the library counts all others as they
// come. lister finds the objects for usage statistics; admission needs none.
func NewConfiguration(lister library.ListerForResourceFunc) library.Configuration {
	core := func(resource string) schema.GroupVersionResource {
		return corev1.SchemeGroupVersion.WithResource(resource)
	}
	evaluators := []library.Evaluator{
		&evaluator{resource: core("pods"), lister: lister, names: podNames, usage: podUsage, scope: podScope, required: podConstraints, handles: podHandles},
		&evaluator{resource: core("services"), lister: lister, names: serviceNames, usage: serviceUsage},
		&evaluator{resource: core("persistentvolumeclaims"), lister: lister, names: claimNames, usage: claimUsage, scope: claimScope},
	}
	// These may be named in a quota without count/, as it was before.
	for resource, name := range map[string]corev1.ResourceName{
		"configmaps": corev1.ResourceConfigMaps, "resourcequotas": corev1.ResourceQuotas,
		"replicationcontrollers": corev1.ResourceReplicationControllers, "secrets": corev1.ResourceSecrets,
	} {
		evaluators = append(evaluators, generic.NewObjectCountEvaluator(core(resource).GroupResource(), lists(lister, core(resource)), name))
	}
	return generic.NewConfiguration(evaluators, ignored())
}

// ignored are not counted: events come in any number, and reviews are not stored.
func ignored() map[schema.GroupResource]struct{} {
	return map[schema.GroupResource]struct{}{
		{Group: "", Resource: "events"}:                                        {},
		{Group: "events.k8s.io", Resource: "events"}:                           {},
		{Group: "", Resource: "bindings"}:                                      {},
		{Group: "", Resource: "componentstatuses"}:                             {},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             {},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   {},
		{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             {},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: {},
		{Group: "", Resource: "namespaces"}:                                    {},
		{Group: "", Resource: "nodes"}:                                         {},
		{Group: "", Resource: "persistentvolumes"}:                             {},
	}
}
