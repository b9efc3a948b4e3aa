package quota

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	library "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
)

// selector asks whether an object is within one scope of a quota.
type selector = corev1.ScopedResourceSelectorRequirement

// evaluator tells what objects of one resource count for.
type evaluator struct {
	resource schema.GroupVersionResource
	lister   library.ListerForResourceFunc
	// names are those of a quota that objects may count for, usage what an object counts for.
	names func(corev1.ResourceName) bool
	usage func(runtime.Object) (corev1.ResourceList, error)
	// scope tells whether an object is within a scope; nil: never. required wants resources that a quota is about to be
	// named; nil: nothing is. handles tells of what requests are counted; nil: of new and changed objects.
	scope    func(selector, runtime.Object) (bool, error)
	required func([]corev1.ResourceName, runtime.Object) error
	handles  func(admission.Attributes) bool
}

func (e *evaluator) GroupResource() schema.GroupResource { return e.resource.GroupResource() }

func (e *evaluator) Constraints(required []corev1.ResourceName, o runtime.Object) error {
	if e.required == nil {
		return nil
	}
	return e.required(required, o)
}

func (e *evaluator) Handles(a admission.Attributes) bool {
	if e.handles != nil {
		return e.handles(a)
	}
	return a.GetSubresource() == "" && (a.GetOperation() == admission.Create || a.GetOperation() == admission.Update)
}

func (e *evaluator) matches(s selector, o runtime.Object) (bool, error) {
	if e.scope == nil {
		return false, nil
	}
	return e.scope(s, o)
}

func (e *evaluator) Matches(q *corev1.ResourceQuota, o runtime.Object) (bool, error) {
	return generic.Matches(q, o, e.MatchingResources, e.matches)
}

func (e *evaluator) MatchingResources(all []corev1.ResourceName) []corev1.ResourceName {
	var found []corev1.ResourceName
	for _, name := range all {
		if e.names(name) || name == generic.ObjectCountQuotaResourceNameFor(e.GroupResource()) {
			found = append(found, name)
		}
	}
	return found
}

func (e *evaluator) MatchingScopes(o runtime.Object, all []selector) ([]selector, error) {
	matched := []selector{}
	for _, s := range all {
		ok, err := e.matches(s, o)
		if err != nil {
			return nil, fmt.Errorf("match scope %s: %w", s.ScopeName, err)
		}
		if ok {
			matched = append(matched, s)
		}
	}
	return matched, nil
}

func (e *evaluator) UncoveredQuotaScopes(limited, matched []selector) ([]selector, error) {
	uncovered := []selector{}
	for _, s := range limited {
		if !slices.ContainsFunc(matched, func(m selector) bool { return m.ScopeName == s.ScopeName }) {
			uncovered = append(uncovered, s)
		}
	}
	return uncovered, nil
}

func (e *evaluator) Usage(o runtime.Object) (corev1.ResourceList, error) { return e.usage(o) }

func (e *evaluator) UsageStats(options library.UsageStatsOptions) (library.UsageStats, error) {
	return generic.CalculateUsageStats(options, lists(e.lister, e.resource), e.matches, e.usage)
}

// lists finds the objects of a namespace. Without a lister that is an error, never an empty answer.
func lists(lister library.ListerForResourceFunc, resource schema.GroupVersionResource) generic.ListFuncByNamespace {
	if lister == nil {
		return func(string) ([]runtime.Object, error) {
			return nil, fmt.Errorf("list %s: there is no lister", resource.Resource)
		}
	}
	return generic.ListResourceUsingListerFunc(lister, resource)
}
