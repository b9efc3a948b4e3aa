package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

const (
	maxAffinity = 86400 // seconds
	kubeletPort = 10250
)

// SetServiceDefaults fills in what is missing; addresses and node ports are allocated elsewhere.
func SetServiceDefaults(o *corev1.Service) {
	s := &o.Spec
	check.Or(&s.SessionAffinity, corev1.ServiceAffinityNone)
	switch s.SessionAffinity {
	case corev1.ServiceAffinityNone:
		s.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := s.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			timeout := corev1.DefaultClientIPServiceAffinitySeconds
			s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	check.Or(&s.Type, corev1.ServiceTypeClusterIP)
	for i := range s.Ports {
		p := &s.Ports[i]
		check.Or(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if reachedFromOutside(s) {
		check.Or(&s.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if s.Type != corev1.ServiceTypeExternalName && serviceTypes.Has(s.Type) {
		check.OrNew(&s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if s.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	check.OrNew(&s.AllocateLoadBalancerNodePorts, true)
	for i := range o.Status.LoadBalancer.Ingress {
		if g := &o.Status.LoadBalancer.Ingress[i]; g.IP != "" {
			check.OrNew(&g.IPMode, corev1.LoadBalancerIPModeVIP)
		}
	}
}

var serviceTypes = sets.New(corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)

func reachedFromOutside(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeLoadBalancer || s.Type == corev1.ServiceTypeNodePort ||
		s.Type == corev1.ServiceTypeClusterIP && len(s.ExternalIPs) > 0
}

func serviceName(name string, prefix bool) []string {
	return apivalidation.NameIsDNS1035Label(name, prefix)
}

// ValidateService holds a new service to its rules, its addresses given or still to be allocated.
func ValidateService(o *corev1.Service) field.ErrorList {
	return append(check.Meta(o, true, serviceName), serviceSpec(o, nil)...)
}

// ValidateServiceUpdate holds a changed service to its rules: addresses that were allocated stay.
func ValidateServiceUpdate(o, old *corev1.Service) field.ErrorList {
	errs := check.MetaUpdate(o, old)
	errs = append(errs, sameAddresses(&o.Spec, &old.Spec, field.NewPath("spec"))...)
	if checked(&o.Spec) && checked(&old.Spec) && old.Spec.HealthCheckNodePort != 0 && o.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "healthCheckNodePort"), "field is immutable"))
	}
	was, now := old.Spec.LoadBalancerClass, o.Spec.LoadBalancerClass
	if old.Spec.Type == corev1.ServiceTypeLoadBalancer && o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		errs = append(errs, check.Immutable(field.NewPath("spec", "loadBalancerClass"), now, was)...)
	}
	errs = append(errs, check.Meta(o, true, serviceName)...)
	return append(errs, serviceSpec(o, old)...)
}

func serviceSpec(o, old *corev1.Service) field.ErrorList {
	s, path := &o.Spec, field.NewPath("spec")
	headless := len(s.ClusterIPs) == 1 && s.ClusterIPs[0] == corev1.ClusterIPNone
	var errs field.ErrorList
	if len(s.Ports) == 0 && !headless && s.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	switch s.Type {
	case corev1.ServiceTypeLoadBalancer:
		for i, p := range s.Ports {
			if p.Port == kubeletPort {
				errs = append(errs, field.Invalid(path.Child("ports").Index(i), p.Port, "may not expose port 10250 externally since it is used by kubelet"))
			}
		}
		if headless {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), "None", "may not be set to 'None' for LoadBalancer services"))
		}
	case corev1.ServiceTypeNodePort:
		if headless {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), "None", "may not be set to 'None' for NodePort services"))
		}
	case corev1.ServiceTypeExternalName:
		errs = append(errs, externalName(s, path)...)
	}
	errs = append(errs, servicePorts(s, path.Child("ports"))...)
	errs = append(errs, metavalidation.ValidateLabels(s.Selector, path.Child("selector"))...)
	errs = append(errs, sessionAffinity(s, path)...)
	errs = append(errs, clusterIPs(s, path)...)
	for i, a := range s.ExternalIPs {
		at := path.Child("externalIPs").Index(i)
		if bad := check.IP(at, a); len(bad) > 0 {
			if old == nil || !sets.New(old.Spec.ExternalIPs...).Has(a) {
				errs = append(errs, bad...)
			}
			continue
		}
		errs = append(errs, ValidateOrdinaryIP(at, a)...)
	}
	errs = append(errs, check.OneOf(path.Child("type"), s.Type, sets.List(serviceTypes)...)...)
	errs = append(errs, loadBalancer(o, path)...)
	errs = append(errs, traffic(s, path)...)
	return append(errs, nodePorts(s, path.Child("ports"))...)
}

func externalName(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.ClusterIPs) > 0 {
		errs = append(errs, field.Forbidden(path.Child("clusterIPs"), "may not be set for ExternalName services"))
	}
	if len(s.IPFamilies) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ipFamilies"), "may not be set for ExternalName services"))
	}
	if s.IPFamilyPolicy != nil {
		errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
	}
	// A name may be written as absolute, with a dot at its end.
	name := strings.TrimSuffix(s.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(path.Child("externalName"), ""))
	}
	return append(errs, check.Invalid(path.Child("externalName"), name, validation.IsDNS1123Subdomain(name))...)
}

func servicePorts(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	seen := sets.New[string]()
	for i, p := range s.Ports {
		at := path.Index(i)
		switch {
		case p.Name == "" && len(s.Ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case p.Name != "":
			errs = append(errs, check.Label(at.Child("name"), p.Name)...)
			if names.Has(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
			names.Insert(p.Name)
		}
		errs = append(errs, check.Invalid(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
		errs = append(errs, check.OneOf(at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		errs = append(errs, check.Port(at.Child("targetPort"), p.TargetPort)...)
		if p.AppProtocol != nil {
			errs = append(errs, check.Qualified(at.Child("appProtocol"), *p.AppProtocol)...)
		}
		if key := fmt.Sprint(p.Protocol, p.Port); seen.Has(key) {
			errs = append(errs, field.Duplicate(at, key))
		} else {
			seen.Insert(key)
		}
	}
	return errs
}

func nodePorts(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, p := range s.Ports {
		at := path.Index(i).Child("nodePort")
		if p.NodePort == 0 {
			continue
		}
		if s.Type == corev1.ServiceTypeClusterIP {
			errs = append(errs, field.Forbidden(at, "may not be used when `type` is 'ClusterIP'"))
		}
		if key := fmt.Sprint(p.Protocol, p.NodePort); seen.Has(key) {
			errs = append(errs, field.Duplicate(at, p.NodePort))
		} else {
			seen.Insert(key)
		}
	}
	return errs
}

func sessionAffinity(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := check.OneOf(path.Child("sessionAffinity"), s.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	at := path.Child("sessionAffinityConfig")
	c := s.SessionAffinityConfig
	switch s.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if c != nil {
			errs = append(errs, field.Forbidden(at, "must not be set when session affinity is None"))
		}
	case corev1.ServiceAffinityClientIP:
		switch {
		case c == nil:
			errs = append(errs, field.Required(at, "when session affinity type is ClientIP"))
		case c.ClientIP == nil:
			errs = append(errs, field.Required(at.Child("clientIP"), "when session affinity type is ClientIP"))
		case c.ClientIP.TimeoutSeconds == nil:
			errs = append(errs, field.Required(at.Child("clientIP", "timeoutSeconds"), "when session affinity type is ClientIP"))
		default:
			if t := *c.ClientIP.TimeoutSeconds; t <= 0 || t > maxAffinity {
				errs = append(errs, field.Invalid(at.Child("clientIP", "timeoutSeconds"), t, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinity)))
			}
		}
	}
	return errs
}

func loadBalancer(o *corev1.Service, path *field.Path) field.ErrorList {
	s, is := &o.Spec, o.Spec.Type == corev1.ServiceTypeLoadBalancer
	var errs field.ErrorList
	at := path.Child("loadBalancerSourceRanges")
	if len(s.LoadBalancerSourceRanges) > 0 {
		if !is {
			errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
		}
		for i, r := range s.LoadBalancerSourceRanges {
			errs = append(errs, validation.IsValidCIDRForLegacyField(at.Index(i), strings.TrimSpace(r), false, nil)...)
		}
	} else if v, ok := o.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; ok {
		at := field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		if !is {
			errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
		}
		if v = strings.TrimSpace(v); v != "" {
			for r := range strings.SplitSeq(v, ",") {
				errs = append(errs, validation.IsValidCIDRForLegacyField(at, strings.TrimSpace(r), false, nil)...)
			}
		}
	}
	at = path.Child("allocateLoadBalancerNodePorts")
	switch {
	case is && s.AllocateLoadBalancerNodePorts == nil:
		errs = append(errs, field.Required(at, ""))
	case !is && s.AllocateLoadBalancerNodePorts != nil:
		errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
	}
	if c := s.LoadBalancerClass; c != nil {
		at := path.Child("loadBalancerClass")
		if !is {
			errs = append(errs, field.Forbidden(at, "may only be used when `type` is 'LoadBalancer'"))
		}
		if is {
			errs = append(errs, check.Qualified(at, *c)...)
		}
	}
	return errs
}

// checked says whether a load balancer asks each node if the service is there.
func checked(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeLoadBalancer && s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func traffic(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	outside := reachedFromOutside(s)
	at := path.Child("externalTrafficPolicy")
	switch p := s.ExternalTrafficPolicy; {
	case outside && p == "":
		errs = append(errs, field.Required(at, ""))
	case outside:
		errs = append(errs, check.Supported(at, p, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	case p != "":
		errs = append(errs, field.Invalid(at, p, "may only be set for externally-accessible services"))
	}
	at = path.Child("healthCheckNodePort")
	if p := s.HealthCheckNodePort; p == 0 {
		if checked(s) {
			errs = append(errs, field.Required(at, ""))
		}
	} else {
		switch {
		case !checked(s):
			errs = append(errs, field.Invalid(at, p, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
		default:
			errs = append(errs, check.Invalid(at, p, validation.IsValidPortNum(int(p)))...)
		}
	}
	at = path.Child("internalTrafficPolicy")
	switch p := s.InternalTrafficPolicy; {
	case p == nil && s.Type != corev1.ServiceTypeExternalName && serviceTypes.Has(s.Type):
		errs = append(errs, field.Required(at, ""))
	case p != nil:
		errs = append(errs, check.Supported(at, *p, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}
	return append(errs, check.SupportedIf(path.Child("trafficDistribution"), s.TrafficDistribution, corev1.ServiceTrafficDistributionPreferClose,
		corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)...)
}
