// Package core has the defaults and rules of the kinds of the core group beside pods, which package api has.
package core

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// ValidateConfigMap holds a new ConfigMap to its rules.
func ValidateConfigMap(o *corev1.ConfigMap) field.ErrorList { return api.ValidateObject(o, true) }

// ValidateConfigMapUpdate holds a changed ConfigMap to its rules.
func ValidateConfigMapUpdate(o, old *corev1.ConfigMap) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	if is(old.Immutable) {
		if !is(o.Immutable) {
			errs = append(errs, fixed("immutable"))
		}
		if !equality.Semantic.DeepEqual(o.Data, old.Data) {
			errs = append(errs, fixed("data"))
		}
		if !equality.Semantic.DeepEqual(o.BinaryData, old.BinaryData) {
			errs = append(errs, fixed("binaryData"))
		}
	}
	return append(errs, ValidateConfigMap(o)...)
}

func is(flag *bool) bool { return flag != nil && *flag }

func fixed(name string) *field.Error {
	return field.Forbidden(field.NewPath(name), "field is immutable when `immutable` is set")
}

// ValidateSecret holds a new Secret to its rules.
func ValidateSecret(o *corev1.Secret) field.ErrorList {
	errs := api.ValidateObject(o, true)
	if o.Type == corev1.SecretTypeServiceAccountToken && o.Annotations[corev1.ServiceAccountNameKey] == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
	}
	return errs
}

// ValidateSecretUpdate holds a changed Secret to its rules.
func ValidateSecretUpdate(o, old *corev1.Secret) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, check.Immutable(field.NewPath("type"), o.Type, old.Type)...)
	if is(old.Immutable) {
		if !is(o.Immutable) {
			errs = append(errs, fixed("immutable"))
		}
		if !equality.Semantic.DeepEqual(o.Data, old.Data) {
			errs = append(errs, fixed("data"))
		}
	}
	return append(errs, ValidateSecret(o)...)
}

// ValidateServiceAccount holds a new ServiceAccount to its rules.
func ValidateServiceAccount(o *corev1.ServiceAccount) field.ErrorList {
	return check.Meta(o, true, check.SubdomainName)
}

// ValidateServiceAccountUpdate holds a changed ServiceAccount to its rules.
func ValidateServiceAccountUpdate(o, old *corev1.ServiceAccount) field.ErrorList {
	return append(check.MetaUpdate(o, old), ValidateServiceAccount(o)...)
}

// SetNamespaceDefaults gives a namespace the label that selectors find it by.
func SetNamespaceDefaults(o *corev1.Namespace) {
	check.Or(&o.Status.Phase, corev1.NamespaceActive)
	if o.Name == "" {
		return
	}
	if o.Labels == nil {
		o.Labels = map[string]string{}
	}
	o.Labels[corev1.LabelMetadataName] = o.Name
}

// ValidateNamespace holds a new namespace to its rules.
func ValidateNamespace(o *corev1.Namespace) field.ErrorList {
	errs := check.Meta(o, false, check.LabelName)
	for _, f := range o.Spec.Finalizers {
		errs = append(errs, finalizer(string(f), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func finalizer(name string, path *field.Path) field.ErrorList {
	errs := check.Invalid(path, name, validation.IsQualifiedName(name))
	standard := name == string(corev1.FinalizerKubernetes) || name == "orphan" || name == "foregroundDeletion"
	if !strings.Contains(name, "/") && !standard {
		errs = append(errs, field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified"))
	}
	return errs
}

// ValidateNamespaceUpdate holds a changed namespace to its rules.
func ValidateNamespaceUpdate(o, old *corev1.Namespace) field.ErrorList {
	return append(ValidateNamespace(o), check.MetaUpdate(o, old)...)
}

// SetLimitRangeDefaults fills in for containers what the other limits of an item imply.
func SetLimitRangeDefaults(o *corev1.LimitRange) {
	for i := range o.Spec.Limits {
		l := &o.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
			Milli(list)
		}
		if l.Type != corev1.LimitTypeContainer {
			continue
		}
		if l.Default == nil {
			l.Default = corev1.ResourceList{}
		}
		if l.DefaultRequest == nil {
			l.DefaultRequest = corev1.ResourceList{}
		}
		missing(l.Default, l.Max)
		missing(l.DefaultRequest, l.Default)
		missing(l.DefaultRequest, l.Min)
	}
}

func missing(into, from corev1.ResourceList) {
	for name, q := range from {
		if _, ok := into[name]; !ok {
			into[name] = q.DeepCopy()
		}
	}
}

// Milli rounds quantities up to thousandths, the smallest step the API keeps.
func Milli(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(-3)
		list[name] = q
	}
}

// ValidateLimitRange holds a new LimitRange to its rules.
func ValidateLimitRange(o *corev1.LimitRange) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	seen := sets.New[corev1.LimitType]()
	for i := range o.Spec.Limits {
		l, at := &o.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, limitType(l.Type, at.Child("type"))...)
		if seen.Has(l.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), l.Type))
		}
		seen.Insert(l.Type)
		errs = append(errs, limitItem(l, at)...)
	}
	return errs
}

// ValidateLimitRangeUpdate holds a changed LimitRange to its rules.
func ValidateLimitRangeUpdate(o, _ *corev1.LimitRange) field.ErrorList { return ValidateLimitRange(o) }

func limitType(t corev1.LimitType, path *field.Path) field.ErrorList {
	if bad := validation.IsQualifiedName(string(t)); len(bad) > 0 {
		return check.Invalid(path, t, bad)
	}
	standard := sets.New(corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim)
	if !strings.Contains(string(t), "/") && !standard.Has(t) {
		return field.ErrorList{field.Invalid(path, t, "must be a standard limit type or fully qualified")}
	}
	return nil
}

func limitItem(l *corev1.LimitRangeItem, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[corev1.ResourceName]()
	for _, part := range []struct {
		name string
		list corev1.ResourceList
	}{
		{"max", l.Max}, {"min", l.Min}, {"default", l.Default}, {"defaultRequest", l.DefaultRequest}, {"maxLimitRequestRatio", l.MaxLimitRequestRatio},
	} {
		if l.Type == corev1.LimitTypePod && strings.HasPrefix(part.name, "default") {
			if len(part.list) > 0 {
				errs = append(errs, field.Forbidden(path.Child(part.name), "may not be specified when `type` is 'Pod'"))
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(part.list)) {
			errs = append(errs, limitName(l.Type, name, path.Child(part.name).Key(string(name)))...)
			names.Insert(name)
		}
	}
	if l.Type == corev1.LimitTypePersistentVolumeClaim {
		_, least := l.Min[corev1.ResourceStorage]
		if _, most := l.Max[corev1.ResourceStorage]; !least && !most {
			errs = append(errs, field.Required(path.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	for _, name := range sets.List(names) {
		errs = append(errs, limitOrder(l, name, path)...)
	}
	return errs
}

func limitName(t corev1.LimitType, name corev1.ResourceName, path *field.Path) field.ErrorList {
	if t == corev1.LimitTypePod || t == corev1.LimitTypeContainer {
		return api.ValidateResourceName(path, name)
	}
	return anyResourceName(path, name)
}

func anyResourceName(path *field.Path, name corev1.ResourceName) field.ErrorList {
	if bad := validation.IsQualifiedName(string(name)); len(bad) > 0 {
		return check.Invalid(path, name, bad)
	}
	if !strings.Contains(string(name), "/") && !standardResources.Has(name) && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
		return field.ErrorList{field.Invalid(path, name, "must be a standard resource type or fully qualified")}
	}
	return nil
}

// limitOrder wants min <= defaultRequest <= default <= max.
func limitOrder(l *corev1.LimitRangeItem, name corev1.ResourceName, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	key := string(name)
	above := func(low corev1.ResourceList, lowName string, high corev1.ResourceList, at string) {
		a, ok := low[name]
		b, also := high[name]
		if ok && also && a.Cmp(b) > 0 {
			bad := a
			if at == lowName {
				bad = b
			}
			errs = append(errs, field.Invalid(path.Child(at).Key(key), bad.String(), lowName+" value "+a.String()+" is greater than "+b.String()))
		}
	}
	above(l.Min, "min", l.Max, "min")
	if l.Type != corev1.LimitTypePod {
		above(l.Min, "min", l.DefaultRequest, "defaultRequest")
		above(l.DefaultRequest, "defaultRequest", l.Max, "defaultRequest")
		above(l.DefaultRequest, "defaultRequest", l.Default, "defaultRequest")
		above(l.Min, "min", l.Default, "default")
		above(l.Default, "default", l.Max, "default")
	}
	ratio, ok := l.MaxLimitRequestRatio[name]
	at := path.Child("maxLimitRequestRatio").Key(key)
	low, hasMin := l.Min[name]
	high, hasMax := l.Max[name]
	if ok && ratio.Cmp(one) < 0 {
		errs = append(errs, field.Invalid(at, ratio.String(), "ratio is less than 1"))
	}
	if ok && hasMin && hasMax {
		most := float64(high.Value()) / float64(low.Value())
		r := float64(ratio.Value())
		if high.Value() <= api.MaxMilli && low.Value() <= api.MaxMilli && ratio.Value() <= api.MaxMilli {
			r = float64(ratio.MilliValue()) / 1000
			most = float64(high.MilliValue()) / float64(low.MilliValue())
		}
		if r > most {
			errs = append(errs, field.Invalid(at, ratio.String(), "ratio is greater than max/min"))
		}
	}
	overcommit := api.Overcommits(name)
	limit, hasDefault := l.Default[name]
	request, hasRequest := l.DefaultRequest[name]
	if !overcommit && l.Type != corev1.LimitTypePod && hasDefault && hasRequest && limit.Cmp(request) != 0 {
		errs = append(errs, field.Invalid(path.Child("defaultRequest").Key(key), request.String(), "must be the default limit: it cannot be overcommitted"))
	}
	return errs
}
