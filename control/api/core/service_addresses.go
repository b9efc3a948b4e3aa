package core

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// clusterIPs holds addresses and families to each other: one or two, the first of which is the primary one.
func clusterIPs(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	if s.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var errs field.ErrorList
	ips, families, policy := path.Child("clusterIPs"), path.Child("ipFamilies"), path.Child("ipFamilyPolicy")
	errs = append(errs, check.SupportedIf(policy, s.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack,
		corev1.IPFamilyPolicyRequireDualStack)...)
	single := s.IPFamilyPolicy != nil && *s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	if s.ClusterIP == "" && len(s.ClusterIPs) > 0 {
		errs = append(errs, field.Invalid(ips, s.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	}
	if s.ClusterIP != "" && len(s.ClusterIPs) == 0 {
		errs = append(errs, field.Required(ips, "must be specified when `clusterIP` is specified"))
	}
	if len(s.ClusterIPs) > 0 && s.ClusterIP != "" && s.ClusterIPs[0] != s.ClusterIP {
		errs = append(errs, field.Invalid(ips, s.ClusterIPs, "first value must match `clusterIP`"))
	}
	if single && len(s.ClusterIPs) > 1 {
		errs = append(errs, field.Invalid(policy, *s.IPFamilyPolicy, "must be RequireDualStack or PreferDualStack when multiple clusterIPs are specified"))
	}
	if single && len(s.IPFamilies) > 1 {
		errs = append(errs, field.Invalid(policy, *s.IPFamilyPolicy, "must be RequireDualStack or PreferDualStack when multiple ipFamilies are specified"))
	}
	errs = append(errs, addresses(s, ips)...)
	seen := sets.New[corev1.IPFamily]()
	if len(s.IPFamilies) > 2 {
		errs = append(errs, field.Invalid(families, s.IPFamilies, "may only hold up to 2 values"))
	}
	for i, f := range s.IPFamilies {
		errs = append(errs, check.Supported(families.Index(i), f, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if seen.Has(f) {
			errs = append(errs, field.Duplicate(families.Index(i), f))
		}
		seen.Insert(f)
	}
	return errs
}

func addresses(s *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.ClusterIPs) > 2 {
		return field.ErrorList{field.Invalid(path, s.ClusterIPs, "may only hold up to 2 values")}
	}
	var kinds []corev1.IPFamily
	for i, a := range s.ClusterIPs {
		if a == corev1.ClusterIPNone {
			if i > 0 || len(s.ClusterIPs) > 1 {
				errs = append(errs, field.Invalid(path.Index(i), a, "must be empty or a valid IP address when other values are specified"))
			}
			continue
		}
		bad := check.IP(path.Index(i), a)
		errs = append(errs, bad...)
		if len(bad) > 0 {
			continue
		}
		kind := FamilyOf(a)
		kinds = append(kinds, kind)
		if i < len(s.IPFamilies) && s.IPFamilies[i] != kind && validFamily(s.IPFamilies[i]) {
			errs = append(errs, field.Invalid(path.Index(i), s.ClusterIPs, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", s.IPFamilies[i], i)))
		}
	}
	if len(kinds) == 2 && kinds[0] == kinds[1] {
		errs = append(errs, field.Invalid(path, s.ClusterIPs, "may specify no more than one IP for each IP family"))
	}
	return errs
}

// sameAddresses lets a service gain or lose its second address, but never change one. One that becomes an ExternalName
// gives its addresses back, and one that was has none.
func sameAddresses(now, old *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	if now.Type == corev1.ServiceTypeExternalName || old.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var errs field.ErrorList
	single := now.IPFamilyPolicy == nil || *now.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	at := path.Child("clusterIPs")
	for i, a := range old.ClusterIPs {
		switch {
		case i == 0 && (len(now.ClusterIPs) == 0 || now.ClusterIPs[0] == ""):
			errs = append(errs, field.Invalid(at.Index(0), now.ClusterIPs, "primary clusterIP can not be unset"))
		case i == 0 && now.ClusterIPs[0] != a:
			errs = append(errs, field.Invalid(at.Index(0), now.ClusterIPs, "may not change once set"))
		case i == 1 && len(now.ClusterIPs) < 2 && !single:
			errs = append(errs, field.Invalid(at.Index(1), now.ClusterIPs, "`ipFamilyPolicy` must be set to 'SingleStack' when releasing the secondary clusterIP"))
		case i == 1 && len(now.ClusterIPs) > 1 && now.ClusterIPs[1] != a:
			errs = append(errs, field.Invalid(at.Index(1), now.ClusterIPs, "may not change once set"))
		}
	}
	at = path.Child("ipFamilies")
	for i, f := range old.IPFamilies {
		switch {
		case i == 0 && len(now.IPFamilies) > 0 && now.IPFamilies[0] != f:
			errs = append(errs, field.Invalid(at.Index(0), now.IPFamilies, "may not change once set"))
		case i == 1 && len(now.IPFamilies) < 2 && !single:
			errs = append(errs, field.Invalid(at.Index(1), now.IPFamilies, "`ipFamilyPolicy` must be set to 'SingleStack' when releasing the secondary ipFamily"))
		case i == 1 && len(now.IPFamilies) > 1 && now.IPFamilies[1] != f:
			errs = append(errs, field.Invalid(at.Index(1), now.IPFamilies, "may not change once set"))
		}
	}
	return errs
}

func validFamily(f corev1.IPFamily) bool { return f == corev1.IPv4Protocol || f == corev1.IPv6Protocol }

// FamilyOf tells the family of an address.
func FamilyOf(address string) corev1.IPFamily {
	if strings.Contains(address, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// ValidateOrdinaryIP refuses addresses that never are of another machine.
func ValidateOrdinaryIP(path *field.Path, address string) field.ErrorList {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return nil
	}
	var why string
	switch {
	case a.IsUnspecified():
		why = "may not be unspecified"
	case a.IsLoopback():
		why = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		why = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsLinkLocalMulticast():
		why = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(path, address, why)}
}
