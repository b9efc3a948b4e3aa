// Package resource has the defaults and rules of claims of devices, their classes and the slices that offer them. Much
// of it k8s.io/api generates of its types' tags; the rest is here and in package api.
package resource

import (
	"context"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api"
	"github.com/berth-node/berth/control/api/check"
)

// generated calls a function that k8s.io/api has of a type's tags, without the rules that are only tried out.
func generated[T any](f func(context.Context, operation.Operation, *field.Path, *T, *T) field.ErrorList, o, old *T) field.ErrorList {
	op := operation.Operation{Type: operation.Create, Options: map[string]bool{"DRAPartitionableDevicesType": true}}
	if old != nil {
		op.Type = operation.Update
	}
	var errs field.ErrorList
	for _, e := range f(context.Background(), op, field.NewPath("spec"), o, old) {
		if !e.IsAlpha() {
			errs = append(errs, e)
		}
	}
	return errs
}

// merge adds what is not said already.
func merge(errs, more field.ErrorList) field.ErrorList {
	seen := sets.New[string]()
	for _, e := range errs {
		seen.Insert(string(e.Type) + e.Field)
	}
	for _, e := range more {
		if !seen.Has(string(e.Type) + e.Field) {
			errs = append(errs, e)
		}
	}
	return errs
}

// SetClaimDefaults fills in what requests miss.
func SetClaimDefaults(o *resourcev1.ResourceClaim) { api.SetObjectDefaults(o) }

// ValidateClaim holds a new claim to its rules.
func ValidateClaim(o *resourcev1.ResourceClaim) field.ErrorList {
	// A new claim has no status: the server takes it away.
	bare := &resourcev1.ResourceClaim{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
	errs := merge(api.ValidateObject(bare, true), generated(resourcev1.Validate_ResourceClaimSpec, &o.Spec, nil))
	return append(errs, requests(&o.Spec.Devices, field.NewPath("spec", "devices"))...)
}

// ValidateClaimUpdate holds a changed claim to its rules: what is asked for stays.
func ValidateClaimUpdate(o, old *resourcev1.ResourceClaim) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, check.Immutable(field.NewPath("spec"), o.Spec, old.Spec)...)
	return merge(errs, generated(resourcev1.Validate_ResourceClaimSpec, &o.Spec, &old.Spec))
}

// SetTemplateDefaults fills in what requests miss.
func SetTemplateDefaults(o *resourcev1.ResourceClaimTemplate) { api.SetObjectDefaults(o) }

// ValidateTemplate holds a new template to its rules.
func ValidateTemplate(o *resourcev1.ResourceClaimTemplate) field.ErrorList {
	errs := merge(api.ValidateObject(o, true), generated(resourcev1.Validate_ResourceClaimTemplateSpec, &o.Spec, nil))
	return append(errs, requests(&o.Spec.Spec.Devices, field.NewPath("spec", "spec", "devices"))...)
}

// ValidateTemplateUpdate holds a changed template to its rules: only its metadata changes.
func ValidateTemplateUpdate(o, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, check.Immutable(field.NewPath("spec"), o.Spec, old.Spec)...)
	return merge(errs, generated(resourcev1.Validate_ResourceClaimTemplateSpec, &o.Spec, &old.Spec))
}

// ValidateClass holds a new class to its rules.
func ValidateClass(o *resourcev1.DeviceClass) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), selectors(o.Spec.Selectors, field.NewPath("spec", "selectors"))...)
	return merge(append(errs, class(&o.Spec)...), generated(resourcev1.Validate_DeviceClassSpec, &o.Spec, nil))
}

// ValidateClassUpdate holds a changed class to its rules.
func ValidateClassUpdate(o, old *resourcev1.DeviceClass) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	if !equality.Semantic.DeepEqual(o.Spec.Selectors, old.Spec.Selectors) {
		errs = append(errs, selectors(o.Spec.Selectors, field.NewPath("spec", "selectors"))...)
	}
	return merge(append(errs, class(&o.Spec)...), generated(resourcev1.Validate_DeviceClassSpec, &o.Spec, &old.Spec))
}

func class(s *resourcev1.DeviceClassSpec) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	for i := range s.Selectors {
		if s.Selectors[i].CEL == nil {
			errs = append(errs, field.Required(path.Child("selectors").Index(i).Child("cel"), ""))
		}
	}
	for i, c := range s.Config {
		at := path.Child("config").Index(i).Child("opaque")
		switch {
		case c.Opaque == nil:
			errs = append(errs, field.Required(at, "exactly one configuration must be given"))
		case len(c.Opaque.Parameters.Raw) == 0 && c.Opaque.Parameters.Object == nil:
			errs = append(errs, field.Required(at.Child("parameters"), ""))
		}
	}
	return errs
}

// SetSliceDefaults fills in what taints of devices miss.
func SetSliceDefaults(o *resourcev1.ResourceSlice) {
	now := metav1.Now()
	for i := range o.Spec.Devices {
		for j := range o.Spec.Devices[i].Taints {
			check.OrNew(&o.Spec.Devices[i].Taints[j].TimeAdded, now)
		}
	}
}

// ValidateSlice holds a new slice to its rules.
func ValidateSlice(o *resourcev1.ResourceSlice) field.ErrorList {
	errs := check.Meta(o, false, check.SubdomainName)
	return merge(append(errs, slice(&o.Spec)...), generated(resourcev1.Validate_ResourceSliceSpec, &o.Spec, nil))
}

// ValidateSliceUpdate holds a changed slice to its rules: whose it is stays.
func ValidateSliceUpdate(o, old *resourcev1.ResourceSlice) field.ErrorList {
	errs := append(check.Meta(o, false, check.SubdomainName), check.MetaUpdate(o, old)...)
	path := field.NewPath("spec")
	errs = append(errs, slice(&o.Spec)...)
	errs = append(errs, check.Immutable(path.Child("driver"), o.Spec.Driver, old.Spec.Driver)...)
	errs = append(errs, check.Immutable(path.Child("pool", "name"), o.Spec.Pool.Name, old.Spec.Pool.Name)...)
	if !equality.Semantic.DeepEqual(o.Spec.NodeName, old.Spec.NodeName) {
		errs = append(errs, check.Immutable(path.Child("nodeName"), o.Spec.NodeName, old.Spec.NodeName)...)
	}
	return merge(errs, generated(resourcev1.Validate_ResourceSliceSpec, &o.Spec, &old.Spec))
}

func slice(s *resourcev1.ResourceSliceSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := pool(&s.Pool, path.Child("pool"))
	where := 0
	if n := s.NodeName; n != nil {
		where++
		if *n == "" {
			errs = append(errs, field.Invalid(path.Child("nodeName"), *n, "must be either unset or set to a non-empty string"))
		} else {
			errs = append(errs, check.Invalid(path.Child("nodeName"), *n, validation.IsDNS1123Subdomain(*n))...)
		}
	}
	if s.NodeSelector != nil {
		where++
		errs = append(errs, api.ValidateNodeSelector(s.NodeSelector, path.Child("nodeSelector"))...)
		if len(s.NodeSelector.NodeSelectorTerms) != 1 {
			errs = append(errs, field.Invalid(path.Child("nodeSelector", "nodeSelectorTerms"), s.NodeSelector.NodeSelectorTerms, "must have exactly one node selector term"))
		}
	}
	for _, f := range []*bool{s.AllNodes, s.PerDeviceNodeSelection} {
		if f != nil && *f {
			where++
		}
	}
	if a := s.AllNodes; a != nil && !*a {
		errs = append(errs, field.Invalid(path.Child("allNodes"), *a, "must be either unset or set to true"))
	}
	if p := s.PerDeviceNodeSelection; p != nil && !*p {
		errs = append(errs, field.Invalid(path.Child("perDeviceNodeSelection"), *p, "must be either unset or set to true"))
	}
	switch {
	case where == 0:
		errs = append(errs, field.Required(path, "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"))
	case where > 1:
		errs = append(errs, field.Invalid(path, "", "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set"))
	}
	errs = append(errs, api.ValidateDriverName(path.Child("driver"), s.Driver)...)
	if len(s.SharedCounters) > 0 && len(s.Devices) > 0 {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	names := sets.New[string]()
	for i, d := range s.Devices {
		errs = append(errs, placed(&d, s.PerDeviceNodeSelection != nil && *s.PerDeviceNodeSelection, path.Child("devices").Index(i))...)
		at := path.Child("devices").Index(i).Child("name")
		if d.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		errs = append(errs, check.Label(at, d.Name)...)
		if names.Has(d.Name) {
			errs = append(errs, field.Duplicate(at, d.Name))
		}
		names.Insert(d.Name)
	}
	return errs
}

// placed holds a device to saying where it is if, and only if, its slice leaves that to devices.
func placed(d *resourcev1.Device, own bool, path *field.Path) field.ErrorList {
	n := 0
	for _, set := range []bool{d.NodeName != nil, d.NodeSelector != nil, d.AllNodes != nil} {
		if set {
			n++
		}
	}
	switch {
	case !own && n > 0:
		return field.ErrorList{field.Invalid(path, "", "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
	case own && n == 0:
		return field.ErrorList{field.Required(path, "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
	case own && n > 1:
		return field.ErrorList{field.Invalid(path, "", "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
	}
	return nil
}

func pool(p *resourcev1.ResourcePool, path *field.Path) field.ErrorList {
	errs := api.ValidatePoolName(path.Child("name"), p.Name)
	if p.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(path.Child("resourceSliceCount"), p.ResourceSliceCount, "must be greater than zero"))
	}
	return append(errs, check.AtLeast(path.Child("generation"), p.Generation, 0)...)
}
