// Package discovery has the defaults and rules of the slices of a service's endpoints.
package discovery

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
	"github.com/berth-node/berth/control/api/core"
)

// Limits of one slice.
const (
	maxEndpoints = 1000
	maxPorts     = 20000
	maxAddresses = 100
	maxTopology  = 16
	maxHints     = 8
)

// SetSliceDefaults fills in what ports miss.
func SetSliceDefaults(o *discoveryv1.EndpointSlice) {
	for i := range o.Ports {
		check.OrNew(&o.Ports[i].Name, "")
		check.OrNew(&o.Ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// ValidateSlice holds a new slice to its rules.
func ValidateSlice(o *discoveryv1.EndpointSlice) field.ErrorList { return slice(o, nil) }

// ValidateSliceUpdate holds a changed slice to its rules: the type of its addresses stays.
func ValidateSliceUpdate(o, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := append(slice(o, old), check.MetaUpdate(o, old)...)
	return append(errs, check.Immutable(field.NewPath("addressType"), o.AddressType, old.AddressType)...)
}

func slice(o, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	errs = append(errs, check.OneOf(field.NewPath("addressType"), o.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	known := sets.New[string]()
	if old != nil {
		for _, e := range old.Endpoints {
			known.Insert(e.Addresses...)
		}
	}
	path := field.NewPath("endpoints")
	if n := len(o.Endpoints); n > maxEndpoints {
		return append(errs, field.TooMany(path, n, maxEndpoints))
	}
	for i := range o.Endpoints {
		errs = append(errs, endpoint(&o.Endpoints[i], o.AddressType, known, path.Index(i))...)
	}
	return append(errs, ports(o.Ports)...)
}

func endpoint(e *discoveryv1.Endpoint, kind discoveryv1.AddressType, known sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("addresses")
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(at, "must contain at least 1 address"))
	case n > maxAddresses:
		errs = append(errs, field.TooMany(at, n, maxAddresses))
	}
	for i, a := range e.Addresses {
		errs = append(errs, address(a, kind, known, at.Index(i))...)
	}
	if n := e.NodeName; n != nil {
		errs = append(errs, check.Invalid(path.Child("nodeName"), *n, validation.IsDNS1123Subdomain(*n))...)
	}
	topology := path.Child("deprecatedTopology")
	if n := len(e.DeprecatedTopology); n > maxTopology {
		errs = append(errs, field.TooMany(topology, n, maxTopology))
	}
	errs = append(errs, metavalidation.ValidateLabels(e.DeprecatedTopology, topology)...)
	if _, ok := e.DeprecatedTopology[corev1.LabelHostname]; ok {
		errs = append(errs, field.Forbidden(topology.Key(corev1.LabelHostname), "may not be set, use nodeName instead"))
	}
	if h := e.Hostname; h != nil {
		errs = append(errs, check.Invalid(path.Child("hostname"), *h, validation.IsDNS1123Label(*h))...)
	}
	if e.Hints != nil {
		errs = append(errs, hints(e.Hints, path.Child("hints"))...)
	}
	return errs
}

func address(a string, kind discoveryv1.AddressType, known sets.Set[string], path *field.Path) field.ErrorList {
	switch kind {
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path, a)
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		var errs field.ErrorList
		if !known.Has(a) {
			errs = validation.IsValidIPForLegacyField(path, a, false, nil)
		}
		if len(errs) > 0 {
			return errs
		}
		if four := core.FamilyOf(a) == corev1.IPv4Protocol; four != (kind == discoveryv1.AddressTypeIPv4) {
			errs = append(errs, field.Invalid(path, a, "must be a valid "+string(kind)+" address"))
		}
		return append(errs, core.ValidateOrdinaryIP(path, a)...)
	}
	return nil
}

func hints(h *discoveryv1.EndpointHints, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	each := func(name string, all []string, rule func(*field.Path, string) field.ErrorList) {
		at := path.Child(name)
		if len(all) > maxHints {
			errs = append(errs, field.TooMany(at, len(all), maxHints))
			return
		}
		seen := sets.New[string]()
		for i, v := range all {
			if seen.Has(v) {
				errs = append(errs, field.Duplicate(at.Index(i).Child("name"), v))
				continue
			}
			seen.Insert(v)
			errs = append(errs, rule(at.Index(i).Child("name"), v)...)
		}
	}
	var zones, nodes []string
	for _, z := range h.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range h.ForNodes {
		nodes = append(nodes, n.Name)
	}
	each("forZones", zones, func(p *field.Path, v string) field.ErrorList {
		return check.Invalid(p, v, validation.IsValidLabelValue(v))
	})
	each("forNodes", nodes, func(p *field.Path, v string) field.ErrorList {
		return check.Invalid(p, v, validation.IsDNS1123Subdomain(v))
	})
	return errs
}

func ports(all []discoveryv1.EndpointPort) field.ErrorList {
	path := field.NewPath("ports")
	if len(all) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(all), maxPorts)}
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i, p := range all {
		at := path.Index(i)
		if name := *p.Name; name != "" {
			errs = append(errs, check.Invalid(at.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		if names.Has(*p.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names.Insert(*p.Name)
		errs = append(errs, check.Supported(at.Child("protocol"), *p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		if a := p.AppProtocol; a != nil {
			errs = append(errs, check.Qualified(at.Child("appProtocol"), *a)...)
		}
	}
	return errs
}
