package core

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

var (
	one = *resource.NewQuantity(1, resource.DecimalSI)

	// What a container may ask for without a domain.
	containerResources = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage)
	// What has a meaning without a domain in any list of resources.
	standardResources = containerResources.Union(quotaResources).Insert(corev1.ResourceStorage)
	// What a quota may count.
	quotaResources = sets.New(corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
		corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourcePersistentVolumeClaims, corev1.ResourceConfigMaps,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)
	// What is counted by whole numbers.
	integerResources = sets.New(corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims, corev1.ResourceServicesNodePorts,
		corev1.ResourceServicesLoadBalancers)
	// What is asked for by pods, which is all that best-effort and other scopes of them can count.
	podResources = sets.New(corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage)
	podScopes = sets.New(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
		corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeCrossNamespacePodAffinity)
	quotaScopes = podScopes.Clone().Insert(corev1.ResourceQuotaScopeVolumeAttributesClass)
)

// SetResourceQuotaDefaults rounds what is counted.
func SetResourceQuotaDefaults(o *corev1.ResourceQuota) {
	Milli(o.Spec.Hard)
	Milli(o.Status.Hard)
	Milli(o.Status.Used)
}

// ValidateResourceQuota holds a new quota to its rules.
func ValidateResourceQuota(o *corev1.ResourceQuota) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	errs = append(errs, quotaSpec(&o.Spec, field.NewPath("spec"))...)
	errs = append(errs, quantities(o.Status.Hard, field.NewPath("status", "hard"))...)
	return append(errs, quantities(o.Status.Used, field.NewPath("status", "used"))...)
}

// ValidateResourceQuotaUpdate holds a changed quota to its rules: what it is about stays.
func ValidateResourceQuotaUpdate(o, old *corev1.ResourceQuota) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, quotaSpec(&o.Spec, field.NewPath("spec"))...)
	path := field.NewPath("spec", "scopes")
	if !sets.New(o.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
		errs = append(errs, field.Invalid(path, o.Spec.Scopes, "field is immutable"))
	}
	return errs
}

// ValidateResourceQuotaStatus holds what was counted to its rules.
func ValidateResourceQuotaStatus(o, old *corev1.ResourceQuota) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, quantities(o.Status.Hard, field.NewPath("status", "hard"))...)
	return append(errs, quantities(o.Status.Used, field.NewPath("status", "used"))...)
}

func quantities(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		at := path.Key(string(name))
		errs = append(errs, quotaName(name, at)...)
		q := list[name]
		if q.Sign() < 0 {
			errs = append(errs, field.Invalid(at, q.String(), "must be greater than or equal to 0"))
		}
		if (integerResources.Has(name) || extended(name)) && q.MilliValue()%1000 != 0 {
			errs = append(errs, field.Invalid(at, q.String(), "must be an integer"))
		}
	}
	return errs
}

// extended says whether a device plugin offers a resource, which is counted by whole numbers.
func extended(name corev1.ResourceName) bool {
	domain, _, ok := strings.Cut(string(name), "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasPrefix(string(name), "requests.")
}

func quotaName(name corev1.ResourceName, path *field.Path) field.ErrorList {
	errs := check.Invalid(path, name, validation.IsQualifiedName(string(name)))
	huge := strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) || strings.HasPrefix(string(name), "requests."+corev1.ResourceHugePagesPrefix)
	if !strings.Contains(string(name), "/") && !quotaResources.Has(name) && !huge {
		errs = append(errs, field.Invalid(path, name, "must be a standard resource for quota"))
	}
	return errs
}

func quotaSpec(s *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	errs := quantities(s.Hard, path.Child("hard"))
	errs = append(errs, scopes(s, path)...)
	return append(errs, scopeSelector(s, path)...)
}

// fits says whether a scope can be told of what a quota counts.
func fits(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	switch {
	case scope == corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case scope == corev1.ResourceQuotaScopeVolumeAttributesClass:
		claims := sets.New(corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage)
		return claims.Has(name) || strings.Contains(string(name), ".storageclass.storage.k8s.io/")
	case podScopes.Has(scope):
		return podResources.Has(name) || strings.HasPrefix(string(name), "requests.") && strings.Contains(string(name), "/") ||
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) || strings.HasPrefix(string(name), "requests."+corev1.ResourceHugePagesPrefix)
	}
	return true
}

func opposed(all sets.Set[corev1.ResourceQuotaScope]) bool {
	return all.HasAll(corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort) ||
		all.HasAll(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating)
}

func scopes(s *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	if len(s.Scopes) == 0 {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("scopes")
	seen := sets.New[corev1.ResourceQuotaScope]()
	for _, scope := range s.Scopes {
		if !quotaScopes.Has(scope) {
			errs = append(errs, field.Invalid(at, s.Scopes, "unsupported scope"))
		}
		for name := range s.Hard {
			if quotaResources.Has(name) && !fits(scope, name) {
				errs = append(errs, field.Invalid(at, s.Scopes, "unsupported scope applied to resource"))
			}
		}
		seen.Insert(scope)
	}
	if opposed(seen) {
		errs = append(errs, field.Invalid(at, s.Scopes, "conflicting scopes"))
	}
	return errs
}

func scopeSelector(s *corev1.ResourceQuotaSpec, path *field.Path) field.ErrorList {
	if s.ScopeSelector == nil {
		return nil
	}
	var errs field.ErrorList
	at := path.Child("scopeSelector", "matchExpressions")
	seen := sets.New[corev1.ResourceQuotaScope]()
	for i := range s.ScopeSelector.MatchExpressions {
		e := &s.ScopeSelector.MatchExpressions[i]
		name, values, operator := at.Child("scopeName"), at.Child("values"), at.Child("operator")
		if !quotaScopes.Has(e.ScopeName) {
			errs = append(errs, field.Invalid(name, e.ScopeName, "unsupported scope"))
		}
		for hard := range s.Hard {
			if quotaResources.Has(hard) && !fits(e.ScopeName, hard) {
				errs = append(errs, field.Invalid(at, s.ScopeSelector, "unsupported scope applied to resource"))
			}
		}
		switch e.ScopeName {
		case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating,
			corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
			if e.Operator != corev1.ScopeSelectorOpExists {
				errs = append(errs, field.Invalid(operator, e.Operator, "must be 'Exist' when scope is any of Terminating, NotTerminating, BestEffort, NotBestEffort, CrossNamespacePodAffinity"))
			}
		}
		switch e.Operator {
		case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(values, "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
			}
		case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
			if len(e.Values) != 0 {
				errs = append(errs, field.Invalid(values, e.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
			}
		default:
			errs = append(errs, field.Invalid(operator, e.Operator, "not a valid selector operator"))
		}
		seen.Insert(e.ScopeName)
	}
	if opposed(seen) {
		errs = append(errs, field.Invalid(at, s.ScopeSelector, "conflicting scopes"))
	}
	return errs
}
