package api

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// Limits of the API for name resolution, which are those of resolvers with some room.
const (
	maxNameservers     = 3
	maxSearches        = 32
	maxSearchChars     = 2048
	maxRestartRules    = 20
	maxRestartCodes    = 255
	maxResponders      = 10
	maxResponderWeight = 100000
)

// Validate holds a pod to the rules of the API server for a create. The pod has its defaults already.
func Validate(pod *corev1.Pod) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&pod.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	return append(errs, validateSpec(pod, field.NewPath("spec"))...)
}

func validateSpec(pod *corev1.Pod, path *field.Path) field.ErrorList {
	s := &pod.Spec
	var errs field.ErrorList
	volumes, e := validateVolumes(s.Volumes, path.Child("volumes"))
	errs = append(errs, e...)
	v := containers{spec: s, volumes: volumes}
	errs = append(errs, v.validate(path)...)
	errs = append(errs, validateNames(s, path)...)
	errs = append(errs, validatePolicies(s, path)...)
	errs = append(errs, validatePodSecurity(s, path)...)
	errs = append(errs, validateHost(s, path)...)
	errs = append(errs, validateDNS(s, path)...)
	errs = append(errs, validatePodResources(pod, path)...)
	errs = append(errs, validateScheduling(s, path)...)
	errs = append(errs, validateClaims(s.ResourceClaims, path.Child("resourceClaims"))...)
	return append(errs, validateGates(s, path)...)
}

// ip accepts what has always been accepted for an address, leading zeros too.
func ip(path *field.Path, address string) field.ErrorList {
	return validation.IsValidIPForLegacyField(path, address, false, nil)
}

func validateNames(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, check.Subdomain(path.Child("nodeName"), s.NodeName)...)
	errs = append(errs, check.Subdomain(path.Child("serviceAccountName"), s.ServiceAccountName)...)
	errs = append(errs, check.Subdomain(path.Child("schedulerName"), s.SchedulerName)...)
	errs = append(errs, check.Subdomain(path.Child("priorityClassName"), s.PriorityClassName)...)
	if s.RuntimeClassName != nil {
		errs = append(errs, check.Invalid(path.Child("runtimeClassName"), *s.RuntimeClassName, validation.IsDNS1123Subdomain(*s.RuntimeClassName))...)
	}
	errs = append(errs, check.Label(path.Child("hostname"), s.Hostname)...)
	errs = append(errs, check.Label(path.Child("subdomain"), s.Subdomain)...)
	if h := s.HostnameOverride; h != nil {
		at := path.Child("hostnameOverride")
		errs = append(errs, check.Invalid(at, *h, validation.IsDNS1123Subdomain(*h))...)
		if len(*h) > 64 {
			errs = append(errs, field.TooLong(at, *h, 64))
		}
		if s.HostNetwork {
			errs = append(errs, field.Forbidden(at, "may not be set when hostNetwork is true"))
		}
		if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
			errs = append(errs, field.Forbidden(at, "may not be set when setHostnameAsFQDN is true"))
		}
	}
	return errs
}

func validatePolicies(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, check.OneOf(path.Child("restartPolicy"), s.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)...)
	if t := s.TerminationGracePeriodSeconds; t == nil {
		errs = append(errs, field.Required(path.Child("terminationGracePeriodSeconds"), ""))
	} else {
		errs = append(errs, check.AtLeast(path.Child("terminationGracePeriodSeconds"), *t, 0)...)
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if p := s.PreemptionPolicy; p != nil {
		errs = append(errs, check.OneOf(path.Child("preemptionPolicy"), *p, corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	if s.OS != nil {
		errs = append(errs, check.OneOf(path.Child("os", "name"), s.OS.Name, corev1.Linux, corev1.Windows)...)
	}
	return errs
}

// validateHost holds together what of the host a pod shares.
func validateHost(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.ShareProcessNamespace != nil && *s.ShareProcessNamespace && s.HostPID {
		errs = append(errs, field.Invalid(path.Child("shareProcessNamespace"), true, "may not be set together with hostPID"))
	}
	if s.HostUsers != nil && !*s.HostUsers {
		const why = "may not be set when hostUsers is false"
		if s.HostNetwork {
			errs = append(errs, field.Forbidden(path.Child("hostNetwork"), why))
		}
		if s.HostPID {
			errs = append(errs, field.Forbidden(path.Child("hostPID"), why))
		}
		if s.HostIPC {
			errs = append(errs, field.Forbidden(path.Child("hostIPC"), why))
		}
		for i, c := range s.Containers {
			if len(c.VolumeDevices) > 0 {
				errs = append(errs, field.Forbidden(path.Child("containers").Index(i).Child("volumeDevices"), why))
			}
		}
	}
	for i, a := range s.HostAliases {
		at := path.Child("hostAliases").Index(i)
		errs = append(errs, ip(at.Child("ip"), a.IP)...)
		for j, h := range a.Hostnames {
			errs = append(errs, check.Invalid(at.Child("hostnames").Index(j), h, validation.IsDNS1123Subdomain(h))...)
		}
	}
	return errs
}

func validateDNS(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	errs := check.OneOf(path.Child("dnsPolicy"), s.DNSPolicy, corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	at := path.Child("dnsConfig")
	c := s.DNSConfig
	if s.DNSPolicy == corev1.DNSNone {
		if c == nil {
			return append(errs, field.Required(at, "must be given when dnsPolicy is None"))
		}
		if len(c.Nameservers) == 0 {
			errs = append(errs, field.Required(at.Child("nameservers"), "at least one must be given when dnsPolicy is None"))
		}
	}
	if c == nil {
		return errs
	}
	if len(c.Nameservers) > maxNameservers {
		errs = append(errs, field.Invalid(at.Child("nameservers"), c.Nameservers, fmt.Sprintf("must not have more than %d nameservers", maxNameservers)))
	}
	for i, n := range c.Nameservers {
		errs = append(errs, ip(at.Child("nameservers").Index(i), n)...)
	}
	if len(c.Searches) > maxSearches {
		errs = append(errs, field.Invalid(at.Child("searches"), c.Searches, fmt.Sprintf("must not have more than %d search paths", maxSearches)))
	}
	if n := len(strings.Join(c.Searches, " ")); n > maxSearchChars {
		errs = append(errs, field.Invalid(at.Child("searches"), c.Searches, fmt.Sprintf("must not have more than %d characters, spaces between them included", maxSearchChars)))
	}
	for i, d := range c.Searches {
		// A lone dot ends the search list of many resolvers, and a trailing one makes a domain absolute.
		if d == "." {
			continue
		}
		errs = append(errs, check.Invalid(at.Child("searches").Index(i), d, validation.IsDNS1123SubdomainWithUnderscore(strings.TrimSuffix(d, ".")))...)
	}
	for i, o := range c.Options {
		errs = append(errs, check.Required(at.Child("options").Index(i).Child("name"), o.Name)...)
	}
	return errs
}

func validateClaims(claims []corev1.PodResourceClaim, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, c := range claims {
		at := path.Index(i)
		errs = append(errs, requiredLabel(at.Child("name"), c.Name, seen)...)
		n := 0
		if c.ResourceClaimName != nil {
			n++
			errs = append(errs, check.Invalid(at.Child("resourceClaimName"), *c.ResourceClaimName, validation.IsDNS1123Subdomain(*c.ResourceClaimName))...)
		}
		if c.ResourceClaimTemplateName != nil {
			n++
			errs = append(errs, check.Invalid(at.Child("resourceClaimTemplateName"), *c.ResourceClaimTemplateName, validation.IsDNS1123Subdomain(*c.ResourceClaimTemplateName))...)
		}
		if n != 1 {
			errs = append(errs, field.Invalid(at, c.Name, "must have exactly one of resourceClaimName and resourceClaimTemplateName"))
		}
	}
	return errs
}

// requiredLabel holds a name that is the key of its list to being a DNS label and the only one.
func requiredLabel(path *field.Path, name string, seen sets.Set[string]) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := check.Invalid(path, name, validation.IsDNS1123Label(name))
	if seen.Has(name) {
		errs = append(errs, field.Duplicate(path, name))
	}
	seen.Insert(name)
	return errs
}

func validateGates(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, g := range s.ReadinessGates {
		errs = append(errs, check.Qualified(path.Child("readinessGates").Index(i).Child("conditionType"), string(g.ConditionType))...)
	}
	seen := sets.New[string]()
	for i, g := range s.SchedulingGates {
		at := path.Child("schedulingGates").Index(i)
		errs = append(errs, check.Qualified(at.Child("name"), g.Name)...)
		if seen.Has(g.Name) {
			errs = append(errs, field.Duplicate(at, g.Name))
		}
		seen.Insert(g.Name)
	}
	if s.NodeName != "" && len(s.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "may not be set while schedulingGates are"))
	}
	if g := s.SchedulingGroup; g != nil {
		if g.PodGroupName == nil {
			errs = append(errs, field.Required(path.Child("schedulingGroup", "podGroupName"), ""))
		} else {
			errs = append(errs, check.Invalid(path.Child("schedulingGroup", "podGroupName"), *g.PodGroupName, validation.IsDNS1123Subdomain(*g.PodGroupName))...)
		}
	}
	return append(errs, validateResponders(s, path.Child("evictionResponders"))...)
}

func validateResponders(s *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.EvictionResponders) > 0 && s.SchedulingGroup != nil {
		errs = append(errs, field.Forbidden(path, "may not be set when schedulingGroup is"))
	}
	if n := len(s.EvictionResponders); n > maxResponders {
		errs = append(errs, field.TooMany(path, n, maxResponders))
	}
	seen := sets.New[string]()
	for i, r := range s.EvictionResponders {
		at := path.Index(i)
		errs = append(errs, validation.IsDomainPrefixedKey(at.Child("name"), r.Name)...)
		if seen.Has(r.Name) {
			errs = append(errs, field.Duplicate(at, r.Name))
		}
		seen.Insert(r.Name)
		switch {
		case r.Priority == nil:
			errs = append(errs, field.Required(at.Child("priority"), ""))
		case *r.Priority < 0 || *r.Priority > maxResponderWeight:
			errs = append(errs, field.Invalid(at.Child("priority"), *r.Priority, validation.InclusiveRangeError(0, maxResponderWeight)))
		}
	}
	return errs
}

var selectorOptions = metavalidation.LabelSelectorValidationOptions{}
