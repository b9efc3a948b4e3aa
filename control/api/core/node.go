package core

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// SetNodeDefaults gives a node to use what it has.
func SetNodeDefaults(o *corev1.Node) {
	// One range under two names, of which the older one counts.
	s := &o.Spec
	switch {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
	Milli(o.Status.Capacity)
	Milli(o.Status.Allocatable)
	if o.Status.Allocatable != nil || o.Status.Capacity == nil {
		return
	}
	o.Status.Allocatable = corev1.ResourceList{}
	for name, q := range o.Status.Capacity {
		o.Status.Allocatable[name] = q.DeepCopy()
	}
}

// ValidateNode holds a new node to its rules.
func ValidateNode(o *corev1.Node) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	errs = append(errs, taints(o.Spec.Taints, field.NewPath("spec", "taints"))...)
	errs = append(errs, nodeResources(o)...)
	return append(errs, podCIDRs(o)...)
}

func podCIDRs(o *corev1.Node) field.ErrorList {
	path := field.NewPath("spec", "podCIDRs")
	var errs field.ErrorList
	kinds := sets.New[corev1.IPFamily]()
	for i, c := range o.Spec.PodCIDRs {
		errs = append(errs, validation.IsValidCIDRForLegacyField(path.Index(i), c, false, nil)...)
		kinds.Insert(FamilyOf(c))
	}
	if n := len(o.Spec.PodCIDRs); n > 2 || n == 2 && kinds.Len() < 2 {
		errs = append(errs, field.Invalid(path, o.Spec.PodCIDRs, "may specify no more than one CIDR for each IP family"))
	}
	return errs
}

func nodeResources(o *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []struct {
		name string
		list corev1.ResourceList
	}{{"capacity", o.Status.Capacity}, {"allocatable", o.Status.Allocatable}} {
		for _, name := range slices.Sorted(maps.Keys(part.list)) {
			errs = append(errs, api.ValidateQuantity(field.NewPath("status", part.name).Key(string(name)), name, part.list[name])...)
		}
	}
	return errs
}

func taints(all []corev1.Taint, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[corev1.TaintEffect]sets.Set[string]{}
	for i, t := range all {
		at := path.Index(i)
		errs = append(errs, metavalidation.ValidateLabelName(t.Key, at.Child("key"))...)
		errs = append(errs, check.Invalid(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		errs = append(errs, check.OneOf(at.Child("effect"), t.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)...)
		if seen[t.Effect] == nil {
			seen[t.Effect] = sets.New[string]()
		}
		if seen[t.Effect].Has(t.Key) {
			d := field.Duplicate(at, t)
			d.Detail = "taints must be unique by key and effect pair"
			errs = append(errs, d)
			return errs
		}
		seen[t.Effect].Insert(t.Key)
	}
	return errs
}

// ValidateNodeUpdate holds a changed node to its rules: what it was made with stays.
func ValidateNodeUpdate(o, old *corev1.Node) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, check.Meta(o, false, check.SubdomainName)...)
	errs = append(errs, taintsUpdate(o, old)...)
	errs = append(errs, nodeResources(o)...)
	errs = append(errs, addressesOf(o)...)
	spec := field.NewPath("spec")
	if len(old.Spec.PodCIDRs) > 0 && !slices.Equal(o.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		errs = append(errs, field.Forbidden(spec.Child("podCIDRs"), "node updates may not change podCIDR except from \"\" to valid"))
	}
	errs = append(errs, podCIDRs(o)...)
	if old.Spec.ProviderID != "" && o.Spec.ProviderID != old.Spec.ProviderID {
		errs = append(errs, field.Forbidden(spec.Child("providerID"), "node updates may not change providerID except from \"\" to valid"))
	}
	if o.Spec.DoNotUseExternalID != old.Spec.DoNotUseExternalID {
		errs = append(errs, field.Forbidden(spec.Child("externalID"), "may not be updated"))
	}
	return errs
}

func taintsUpdate(o, _ *corev1.Node) field.ErrorList {
	return taints(o.Spec.Taints, field.NewPath("spec", "taints"))
}

func addressesOf(o *corev1.Node) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.NodeAddress]()
	for i, a := range o.Status.Addresses {
		if seen.Has(a) {
			errs = append(errs, field.Duplicate(field.NewPath("status", "addresses").Index(i), a))
		}
		seen.Insert(a)
	}
	return errs
}
