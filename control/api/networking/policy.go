// Package networking has the defaults and rules of network policies, ingresses, and addresses of services.
package networking

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-node/berth/control/api/check"
)

// SetNetworkPolicyDefaults says which directions a policy is about: without them a policy with egress rules only would
// close ingress, which is what they mean.
func SetNetworkPolicyDefaults(o *v1.NetworkPolicy) {
	for _, r := range o.Spec.Ingress {
		setPorts(r.Ports)
	}
	for _, r := range o.Spec.Egress {
		setPorts(r.Ports)
	}
	if len(o.Spec.PolicyTypes) > 0 {
		return
	}
	o.Spec.PolicyTypes = []v1.PolicyType{v1.PolicyTypeIngress}
	if len(o.Spec.Egress) > 0 {
		o.Spec.PolicyTypes = append(o.Spec.PolicyTypes, v1.PolicyTypeEgress)
	}
}

func setPorts(ports []v1.NetworkPolicyPort) {
	for i := range ports {
		check.OrNew(&ports[i].Protocol, corev1.ProtocolTCP)
	}
}

// ValidateNetworkPolicy holds a new policy to its rules.
func ValidateNetworkPolicy(o *v1.NetworkPolicy) field.ErrorList {
	return append(check.Meta(o, true, check.SubdomainName), policySpec(&o.Spec, nil)...)
}

// ValidateNetworkPolicyUpdate holds a changed policy to its rules.
func ValidateNetworkPolicyUpdate(o, old *v1.NetworkPolicy) field.ErrorList {
	return append(check.MetaUpdate(o, old), policySpec(&o.Spec, blocks(old))...)
}

// blocks are the ranges that a policy has: those that were accepted once still are.
func blocks(o *v1.NetworkPolicy) sets.Set[string] {
	all := sets.New[string]()
	peers := func(list []v1.NetworkPolicyPeer) {
		for _, p := range list {
			if p.IPBlock != nil {
				all.Insert(p.IPBlock.CIDR).Insert(p.IPBlock.Except...)
			}
		}
	}
	for _, r := range o.Spec.Ingress {
		peers(r.From)
	}
	for _, r := range o.Spec.Egress {
		peers(r.To)
	}
	return all
}

func policySpec(s *v1.NetworkPolicySpec, known sets.Set[string]) field.ErrorList {
	path := field.NewPath("spec")
	errs := check.Selector(path.Child("podSelector"), &s.PodSelector)
	for i, r := range s.Ingress {
		at := path.Child("ingress").Index(i)
		errs = append(errs, policyPorts(r.Ports, at.Child("ports"))...)
		errs = append(errs, policyPeers(r.From, known, at.Child("from"))...)
	}
	for i, r := range s.Egress {
		at := path.Child("egress").Index(i)
		errs = append(errs, policyPorts(r.Ports, at.Child("ports"))...)
		errs = append(errs, policyPeers(r.To, known, at.Child("to"))...)
	}
	at := path.Child("policyTypes")
	if len(s.PolicyTypes) > 2 {
		return append(errs, field.Invalid(at, s.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range s.PolicyTypes {
		errs = append(errs, check.Supported(at.Index(i), t, v1.PolicyTypeIngress, v1.PolicyTypeEgress)...)
	}
	return errs
}

func policyPorts(ports []v1.NetworkPolicyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, p := range ports {
		at := path.Index(i)
		errs = append(errs, check.SupportedIf(at.Child("protocol"), p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		switch {
		case p.Port == nil:
			if p.EndPort != nil {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "may not be specified when `port` is not specified"))
			}
		case p.Port.Type == intstr.Int:
			errs = append(errs, check.Invalid(at.Child("port"), p.Port.IntVal, validation.IsValidPortNum(int(p.Port.IntVal)))...)
			if p.EndPort == nil {
				continue
			}
			if *p.EndPort < p.Port.IntVal {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "must be greater than or equal to `port`"))
			}
			errs = append(errs, check.Invalid(at.Child("endPort"), *p.EndPort, validation.IsValidPortNum(int(*p.EndPort)))...)
		default:
			if p.EndPort != nil {
				errs = append(errs, field.Invalid(at.Child("endPort"), *p.EndPort, "may not be specified when `port` is non-numeric"))
			}
			errs = append(errs, check.Invalid(at.Child("port"), p.Port.StrVal, validation.IsValidPortName(p.Port.StrVal))...)
		}
	}
	return errs
}

func policyPeers(peers []v1.NetworkPolicyPeer, known sets.Set[string], path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range peers {
		p, at := &peers[i], path.Index(i)
		n := 0
		if p.PodSelector != nil {
			n++
			errs = append(errs, check.Selector(at.Child("podSelector"), p.PodSelector)...)
		}
		if p.NamespaceSelector != nil {
			n++
			errs = append(errs, check.Selector(at.Child("namespaceSelector"), p.NamespaceSelector)...)
		}
		if p.IPBlock != nil {
			n++
			errs = append(errs, ipBlock(p.IPBlock, known, at.Child("ipBlock"))...)
		}
		switch {
		case n == 0:
			errs = append(errs, field.Required(at, "must specify a peer"))
		case n > 1 && p.IPBlock != nil:
			errs = append(errs, field.Forbidden(at, "may not specify both ipBlock and another peer"))
		}
	}
	return errs
}

func ipBlock(b *v1.IPBlock, known sets.Set[string], path *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(path.Child("cidr"), "")}
	}
	errs := cidr(path.Child("cidr"), b.CIDR, known)
	outer, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return errs
	}
	for i, e := range b.Except {
		at := path.Child("except").Index(i)
		bad := cidr(at, e, known)
		errs = append(errs, bad...)
		inner, err := netip.ParsePrefix(e)
		if err != nil {
			continue
		}
		if !outer.Masked().Contains(inner.Masked().Addr()) || inner.Bits() <= outer.Bits() {
			errs = append(errs, field.Invalid(at, e, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

func cidr(path *field.Path, text string, known sets.Set[string]) field.ErrorList {
	return validation.IsValidCIDRForLegacyField(path, text, false, sets.List(known))
}
