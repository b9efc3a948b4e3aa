package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// SetEndpointsDefaults fills in protocols.
func SetEndpointsDefaults(o *corev1.Endpoints) {
	for i := range o.Subsets {
		for j := range o.Subsets[i].Ports {
			check.Or(&o.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

// ValidateEndpoints holds new endpoints to their rules.
func ValidateEndpoints(o *corev1.Endpoints) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), subsets(o.Subsets)...)
}

// ValidateEndpointsUpdate holds changed endpoints to their rules.
func ValidateEndpointsUpdate(o, old *corev1.Endpoints) field.ErrorList {
	return append(check.MetaUpdate(o, old), ValidateEndpoints(o)...)
}

func subsets(all []corev1.EndpointSubset) field.ErrorList {
	var errs field.ErrorList
	for i := range all {
		s, path := &all[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(path, "must specify `addresses` or `notReadyAddresses`"))
		}
		for _, part := range []struct {
			name string
			all  []corev1.EndpointAddress
		}{{"addresses", s.Addresses}, {"notReadyAddresses", s.NotReadyAddresses}} {
			for j, a := range part.all {
				at := path.Child(part.name).Index(j)
				bad := check.IP(at.Child("ip"), a.IP)
				errs = append(errs, bad...)
				errs = append(errs, check.Label(at.Child("hostname"), a.Hostname)...)
				if a.NodeName != nil {
					errs = append(errs, check.Invalid(at.Child("nodeName"), *a.NodeName, validation.IsDNS1123Subdomain(*a.NodeName))...)
				}
				if len(bad) == 0 {
					errs = append(errs, ValidateOrdinaryIP(at.Child("ip"), a.IP)...)
				}
			}
		}
		for j, p := range s.Ports {
			at := path.Child("ports").Index(j)
			if p.Name == "" && len(s.Ports) > 1 {
				errs = append(errs, field.Required(at.Child("name"), ""))
			}
			errs = append(errs, check.Label(at.Child("name"), p.Name)...)
			errs = append(errs, check.Invalid(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
			errs = append(errs, check.OneOf(at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
			if p.AppProtocol != nil {
				errs = append(errs, check.Qualified(at.Child("appProtocol"), *p.AppProtocol)...)
			}
		}
	}
	return errs
}
