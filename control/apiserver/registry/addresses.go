package registry

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

const (
	// tries is how many addresses are tried at random before they are gone through one by one.
	tries = 32
	// maxScan bounds the going through.
	maxScan = 1 << 16
)

var errFull = errors.New("range is full")

// addresses gives services their cluster IPs. Who has an address is an object of the API, IPAddress, whose name is the
// address: the store itself sees to it that only one has it, whichever server asks.
type addresses struct {
	ips, ranges *REST
}

// prefixes are the ranges of services for a family.
func (a *addresses) prefixes(ctx context.Context, family corev1.IPFamily) ([]netip.Prefix, error) {
	o, err := a.ranges.List(cluster(ctx), &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []netip.Prefix
	for _, r := range o.(*networkingv1.ServiceCIDRList).Items {
		if r.DeletionTimestamp != nil {
			continue // it is given up when nobody has an address of it
		}
		for _, text := range r.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && familyOf(p.Addr()) == family {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// cluster is a context of what is in no namespace.
func cluster(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, metav1.NamespaceNone)
}

// take takes the address for the service, if it is free and in a range.
func (a *addresses) take(ctx context.Context, s *corev1.Service, ip netip.Addr, dry bool) error {
	all, err := a.prefixes(ctx, familyOf(ip))
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Contains(ip) {
			return a.claim(ctx, s, ip, dry)
		}
	}
	return fmt.Errorf("provided IP is not in the valid range: the ranges of services are %v", all)
}

// next takes any free address for the service.
func (a *addresses) next(ctx context.Context, s *corev1.Service, family corev1.IPFamily, dry bool) (netip.Addr, error) {
	all, err := a.prefixes(ctx, family)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, p := range all {
		ip, err := a.nextIn(ctx, s, p, dry)
		if !errors.Is(err, errFull) {
			return ip, err
		}
	}
	return netip.Addr{}, fmt.Errorf("%s: %w", family, errFull)
}

func (a *addresses) nextIn(ctx context.Context, s *corev1.Service, p netip.Prefix, dry bool) (netip.Addr, error) {
	size := usable(p)
	try := func(n uint64) (netip.Addr, error) {
		ip := offset(p, n+1) // the first is the network itself
		return ip, a.claim(ctx, s, ip, dry)
	}
	for range min(tries, size) {
		if ip, err := try(rand.Uint64N(size)); !apierrors.IsAlreadyExists(err) {
			return ip, err
		}
	}
	for n := range min(size, maxScan) {
		if ip, err := try(n); !apierrors.IsAlreadyExists(err) {
			return ip, err
		}
	}
	return netip.Addr{}, errFull
}

// usable is how many addresses services may have of a range: not that of the network nor, with IPv4, of its broadcast.
func usable(p netip.Prefix) uint64 {
	bits := p.Addr().BitLen() - p.Bits()
	switch {
	case bits >= 63:
		return 1 << 62
	case p.Addr().Is4():
		return max(uint64(1)<<bits, 2) - 2
	}
	return uint64(1)<<bits - 1
}

func offset(p netip.Prefix, n uint64) netip.Addr {
	base := new(big.Int).SetBytes(p.Masked().Addr().AsSlice())
	sum := base.Add(base, new(big.Int).SetUint64(n))
	ip, _ := netip.AddrFromSlice(sum.FillBytes(make([]byte, p.Addr().BitLen()/8)))
	return ip
}

func (a *addresses) claim(ctx context.Context, s *corev1.Service, ip netip.Addr, dry bool) error {
	o := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(familyOf(ip)), networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: s.Namespace, Name: s.Name}},
	}
	rest.FillObjectMetaSystemFields(o)
	options := &metav1.CreateOptions{}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	_, err := a.ips.Create(cluster(ctx), o, rest.ValidateAllObjectFunc, options)
	return err
}

// free gives an address back that nobody uses any more.
func (a *addresses) free(ctx context.Context, ip string) error {
	zero := int64(0)
	_, _, err := a.ips.Delete(cluster(ctx), ip, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{GracePeriodSeconds: &zero})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
