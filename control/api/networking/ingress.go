package networking

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

const classAnnotation = "kubernetes.io/ingress.class"

// ValidateIngress holds a new ingress to its rules.
func ValidateIngress(o *v1.Ingress) field.ErrorList {
	errs := check.Meta(o, true, check.SubdomainName)
	errs = append(errs, ingressSpec(o, nil)...)
	if c, ok := o.Annotations[classAnnotation]; ok && o.Spec.IngressClassName != nil && c != *o.Spec.IngressClassName {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(classAnnotation), c, "must match `ingressClassName` when both are specified"))
	}
	return errs
}

// ValidateIngressUpdate holds a changed ingress to its rules.
func ValidateIngressUpdate(o, old *v1.Ingress) field.ErrorList {
	return append(check.MetaUpdate(o, old), ingressSpec(o, old)...)
}

func ingressSpec(o, old *v1.Ingress) field.ErrorList {
	s, path := &o.Spec, field.NewPath("spec")
	var errs field.ErrorList
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, s.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if s.DefaultBackend != nil {
		errs = append(errs, backend(s.DefaultBackend, o.Namespace, path.Child("defaultBackend"))...)
	}
	for i := range s.Rules {
		errs = append(errs, ingressRule(&s.Rules[i], o.Namespace, path.Child("rules").Index(i))...)
	}
	for i, t := range s.TLS {
		at := path.Child("tls").Index(i)
		for j, h := range t.Hosts {
			errs = append(errs, host(at.Child("hosts").Index(j), h)...)
		}
		if t.SecretName != "" {
			errs = append(errs, check.Invalid(at.Child("secretName"), t.SecretName, validation.IsDNS1123Subdomain(t.SecretName))...)
		}
	}
	if c := s.IngressClassName; c != nil {
		errs = append(errs, check.Invalid(path.Child("ingressClassName"), *c, validation.IsDNS1123Subdomain(*c))...)
	}
	_ = old
	return errs
}

func host(path *field.Path, name string) field.ErrorList {
	if strings.Contains(name, "*") {
		return check.Invalid(path, name, validation.IsWildcardDNS1123Subdomain(name))
	}
	return check.Invalid(path, name, validation.IsDNS1123Subdomain(name))
}

func ingressRule(r *v1.IngressRule, namespace string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Host != "" {
		if strings.Contains(r.Host, ":") || isIP(r.Host) {
			errs = append(errs, field.Invalid(path.Child("host"), r.Host, "must be a DNS name, not an IP address"))
		}
		errs = append(errs, host(path.Child("host"), r.Host)...)
	}
	if r.HTTP == nil {
		return errs
	}
	path = path.Child("http", "paths")
	if len(r.HTTP.Paths) == 0 {
		return append(errs, field.Required(path, ""))
	}
	for i := range r.HTTP.Paths {
		errs = append(errs, httpPath(&r.HTTP.Paths[i], namespace, path.Index(i))...)
	}
	return errs
}

func isIP(text string) bool { return len(validation.IsValidIP(field.NewPath(""), text)) == 0 }

func httpPath(p *v1.HTTPIngressPath, namespace string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.PathType == nil {
		return field.ErrorList{field.Required(path.Child("pathType"), "pathType must be specified")}
	}
	at := path.Child("path")
	switch *p.PathType {
	case v1.PathTypeExact, v1.PathTypePrefix:
		if !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at, p.Path, "must be an absolute path"))
		}
		for _, bad := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(p.Path, bad) {
				errs = append(errs, field.Invalid(at, p.Path, "must not contain '"+bad+"'"))
			}
		}
		for _, bad := range []string{"/..", "/."} {
			if strings.HasSuffix(p.Path, bad) {
				errs = append(errs, field.Invalid(at, p.Path, "cannot end with '"+bad+"'"))
			}
		}
	case v1.PathTypeImplementationSpecific:
		if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
			errs = append(errs, field.Invalid(at, p.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, check.Supported(path.Child("pathType"), *p.PathType, v1.PathTypeExact, v1.PathTypePrefix, v1.PathTypeImplementationSpecific)...)
	}
	return append(errs, backend(&p.Backend, namespace, path.Child("backend"))...)
}

func backend(b *v1.IngressBackend, _ string, path *field.Path) field.ErrorList {
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return typedReference(b.Resource, path.Child("resource"))
	case b.Service == nil:
		return field.ErrorList{field.Invalid(path, "", "resource or service backend is required")}
	}
	var errs field.ErrorList
	at := path.Child("service", "name")
	if b.Service.Name == "" {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, check.Invalid(at, b.Service.Name, apivalidation.NameIsDNS1035Label(b.Service.Name, false))...)
	}
	port := path.Child("service", "port")
	switch p := b.Service.Port; {
	case p.Name != "" && p.Number != 0:
		errs = append(errs, field.Invalid(path, "", "cannot set both port name & port number"))
	case p.Name != "":
		errs = append(errs, check.Invalid(port.Child("name"), p.Name, validation.IsValidPortName(p.Name))...)
	case p.Number != 0:
		errs = append(errs, check.Invalid(port.Child("number"), p.Number, validation.IsValidPortNum(int(p.Number)))...)
	default:
		errs = append(errs, field.Required(path, "port name or number is required"))
	}
	return errs
}

func typedReference(r *corev1.TypedLocalObjectReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.APIGroup != nil {
		errs = append(errs, check.Invalid(path.Child("apiGroup"), *r.APIGroup, validation.IsDNS1123Subdomain(*r.APIGroup))...)
	}
	errs = append(errs, pathSegment(path.Child("kind"), r.Kind)...)
	return append(errs, pathSegment(path.Child("name"), r.Name)...)
}

func pathSegment(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return check.Invalid(path, name, content.IsPathSegmentName(name))
}

// SetIngressClassDefaults fills in what parameters miss.
func SetIngressClassDefaults(o *v1.IngressClass) {
	if p := o.Spec.Parameters; p != nil {
		check.OrNew(&p.Scope, v1.IngressClassParametersReferenceScopeCluster)
	}
}

// ValidateIngressClass holds a new class to its rules.
func ValidateIngressClass(o *v1.IngressClass) field.ErrorList {
	return append(check.Meta(o, false, check.SubdomainName), ingressClass(o)...)
}

// ValidateIngressClassUpdate holds a changed class to its rules: its controller stays.
func ValidateIngressClassUpdate(o, old *v1.IngressClass) field.ErrorList {
	errs := append(check.MetaUpdate(o, old), check.Immutable(field.NewPath("spec", "controller"), o.Spec.Controller, old.Spec.Controller)...)
	errs = append(errs, check.Meta(o, false, check.SubdomainName)...)
	return append(errs, ingressClass(o)...)
}

func ingressClass(o *v1.IngressClass) field.ErrorList {
	path := field.NewPath("spec", "controller")
	errs := parameters(o.Spec.Parameters, field.NewPath("spec", "parameters"))
	switch c := o.Spec.Controller; {
	case c == "":
		errs = append(errs, field.Required(path, ""))
	case len(c) > 250:
		errs = append(errs, field.TooLong(path, c, 250))
	default:
		errs = append(errs, validation.IsDomainPrefixedPath(path, c)...)
	}
	return errs
}

func parameters(p *v1.IngressClassParametersReference, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := typedReference(&corev1.TypedLocalObjectReference{APIGroup: p.APIGroup, Kind: p.Kind, Name: p.Name}, path)
	at := path.Child("scope")
	if p.Scope == nil {
		return append(errs, field.Required(at, ""))
	}
	errs = append(errs, check.Supported(at, *p.Scope, v1.IngressClassParametersReferenceScopeCluster, v1.IngressClassParametersReferenceScopeNamespace)...)
	at = path.Child("namespace")
	switch {
	case *p.Scope == v1.IngressClassParametersReferenceScopeNamespace && p.Namespace == nil:
		errs = append(errs, field.Required(at, "`parameters.scope` is set to 'Namespace'"))
	case *p.Scope == v1.IngressClassParametersReferenceScopeNamespace:
		errs = append(errs, check.Invalid(at, *p.Namespace, content.IsPathSegmentName(*p.Namespace))...)
		errs = append(errs, check.Invalid(at, *p.Namespace, validation.IsDNS1123Label(*p.Namespace))...)
	case *p.Scope == v1.IngressClassParametersReferenceScopeCluster && p.Namespace != nil:
		errs = append(errs, field.Forbidden(at, "`parameters.scope` is set to 'Cluster'"))
	}
	return errs
}

// ValidateIPAddress holds a new address to its rules: its name is the address, written in the one way that it has.
func ValidateIPAddress(o *v1.IPAddress) field.ErrorList {
	errs := check.Meta(o, false, func(name string, _ bool) []string {
		var all []string
		for _, e := range validation.IsValidIP(field.NewPath(""), name) {
			all = append(all, e.Detail)
		}
		return all
	})
	return append(errs, parentReference(o.Spec.ParentRef, field.NewPath("spec"))...)
}

// ValidateIPAddressUpdate holds a changed address to its rules: whose it is stays.
func ValidateIPAddressUpdate(o, old *v1.IPAddress) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, parentReference(o.Spec.ParentRef, field.NewPath("spec"))...)
	return append(errs, check.Immutable(field.NewPath("spec").Child("parentRef"), o.Spec.ParentRef, old.Spec.ParentRef)...)
}

func parentReference(r *v1.ParentReference, path *field.Path) field.ErrorList {
	path = path.Child("parentRef")
	if r == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if r.Group != "" {
		errs = append(errs, check.Subdomain(path.Child("group"), r.Group)...)
	}
	errs = append(errs, pathSegment(path.Child("resource"), r.Resource)...)
	errs = append(errs, pathSegment(path.Child("name"), r.Name)...)
	if r.Namespace != "" {
		errs = append(errs, check.Invalid(path.Child("namespace"), r.Namespace, content.IsPathSegmentName(r.Namespace))...)
	}
	return errs
}

// ValidateServiceCIDR holds a new range to its rules.
func ValidateServiceCIDR(o *v1.ServiceCIDR) field.ErrorList {
	return append(check.Meta(o, false, check.SubdomainName), ranges(o.Spec.CIDRs)...)
}

func ranges(all []string) field.ErrorList {
	path := field.NewPath("spec", "cidrs")
	switch n := len(all); {
	case n == 0:
		return field.ErrorList{field.Required(path, "at least one CIDR required")}
	case n > 2:
		return field.ErrorList{field.Invalid(path, all, "may only hold up to 2 values")}
	}
	var errs field.ErrorList
	for i, c := range all {
		errs = append(errs, validation.IsValidCIDR(path.Index(i), c)...)
	}
	if len(errs) == 0 && len(all) == 2 && strings.Contains(all[0], ":") == strings.Contains(all[1], ":") {
		errs = append(errs, field.Invalid(path, all, "may specify no more than one IP for each IP family"))
	}
	return errs
}

// ValidateServiceCIDRUpdate holds a changed range to its rules: it may gain a second family, and keeps what it has.
func ValidateServiceCIDRUpdate(o, old *v1.ServiceCIDR) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	path := field.NewPath("spec", "cidrs")
	now, was := o.Spec.CIDRs, old.Spec.CIDRs
	if len(was) == 1 && len(now) == 2 {
		return append(errs, append(check.Immutable(path.Index(0), now[0], was[0]), ranges(now)...)...)
	}
	if len(was) != len(now) {
		return append(errs, field.Invalid(path, now, "field is immutable"))
	}
	for i := range now {
		errs = append(errs, check.Immutable(path.Index(i), now[i], was[i])...)
	}
	return errs
}
