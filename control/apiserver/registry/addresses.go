package registry

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	netutils "k8s.io/utils/net"
)

const (
	// tries is how many addresses are tried at random before it is asked which are free.
	tries = 8
	// addressPrefix is where the store has the addresses, each a key that ends with its name.
	addressPrefix = "/registry/ipaddresses/"
	// allocator is by which label addresses are known that services were given, as Kubernetes has it.
	allocator = "ipallocator.k8s.io"
	// addressPage is how many of them are asked for at a time.
	addressPage = 10_000
)

var (
	errFull       = errors.New("range is full")
	errIPTaken    = errors.New("provided IP is already allocated")
	errNotInRange = errors.New("the provided network does not match the current range")
	errOthers     = errors.New("it is another service's")
)

// addresses gives services their cluster IPs. Who has an address is an object of the API, IPAddress, whose name is the
// address: the store itself sees to it that only one has it, whichever server asks.
type addresses struct {
	ips, ranges *REST
	etcd        *clientv3.Client
}

// parseIP reads an address as the API takes them in services: also one with zeros in front.
func parseIP(text string) (netip.Addr, bool) {
	ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return ip.Unmap(), ok
}

// prefixes are the ranges of services for a family, none of which is a part of another: anybody who may make ranges may
// have made thousands of the same.
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
	return apart(all), nil
}

// apart leaves out ranges that are parts of others.
func apart(all []netip.Prefix) []netip.Prefix {
	// A range comes after the one that it is a part of, and nothing but such parts is between them.
	slices.SortFunc(all, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range all {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
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
	if !slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return errNotInRange
	}
	err = a.claim(ctx, s, ip, dry)
	if apierrors.IsAlreadyExists(err) {
		return errIPTaken
	}
	return err
}

// next takes any free address for the service. Of a range that is nearly full it is asked once which are free: to try
// one after another is to write as often as there are addresses, for a service that is refused in the end.
func (a *addresses) next(ctx context.Context, s *corev1.Service, family corev1.IPFamily, dry bool) (netip.Addr, error) {
	all, err := a.prefixes(ctx, family)
	if err != nil {
		return netip.Addr{}, err
	}
	all = slices.DeleteFunc(all, func(p netip.Prefix) bool { return usable(p) == 0 })
	if len(all) == 0 {
		return netip.Addr{}, errFull
	}
	for range tries {
		ip := offset(all[0], 1+rand.Uint64N(usable(all[0]))) // the first is the network itself
		if err := a.claim(ctx, s, ip, dry); !apierrors.IsAlreadyExists(err) {
			return ip, err
		}
	}
	held, err := a.held(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, p := range all {
		for range tries {
			ip, ok := freeIn(p, held)
			if !ok {
				break
			}
			if err := a.claim(ctx, s, ip, dry); !apierrors.IsAlreadyExists(err) {
				return ip, err
			}
			held[ip] = true
		}
	}
	return netip.Addr{}, errFull
}

// held are the addresses that somebody has. Their names alone are read: there may be as many as a range has.
func (a *addresses) held(ctx context.Context) (map[netip.Addr]bool, error) {
	all := map[netip.Addr]bool{}
	end := clientv3.GetPrefixRangeEnd(addressPrefix)
	for from := addressPrefix; ; {
		got, err := a.etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithKeysOnly(), clientv3.WithLimit(addressPage))
		if err != nil {
			return nil, fmt.Errorf("list addresses of services: %w", err)
		}
		for _, kv := range got.Kvs {
			if ip, err := netip.ParseAddr(strings.TrimPrefix(string(kv.Key), addressPrefix)); err == nil {
				all[ip] = true
			}
		}
		if !got.More || len(got.Kvs) == 0 {
			return all, nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}

// freeIn is an address of a range that nobody has.
func freeIn(p netip.Prefix, held map[netip.Addr]bool) (netip.Addr, bool) {
	size := usable(p)
	first := rand.Uint64N(size)
	// One more than those that are held has one that is not.
	for n := range min(size, uint64(len(held))+1) {
		if ip := offset(p, 1+(first+n)%size); !held[ip] {
			return ip, true
		}
	}
	return netip.Addr{}, false
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
			networkingv1.LabelIPAddressFamily: string(familyOf(ip)), networkingv1.LabelManagedBy: allocator,
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

// refersTo says whether it is a service that a reference names.
func refersTo(ref *networkingv1.ParentReference, s *corev1.Service) bool {
	return ofService(ref) && ref.Namespace == s.Namespace && ref.Name == s.Name
}

func ofService(ref *networkingv1.ParentReference) bool {
	return ref != nil && ref.Group == "" && ref.Resource == "services"
}

// free gives back an address that a service had. Anybody who may delete addresses may have had another service take it
// meanwhile, whose it is then.
func (a *addresses) free(ctx context.Context, s *corev1.Service, ip string) error {
	own := func(_ context.Context, o runtime.Object) error {
		if a, is := o.(*networkingv1.IPAddress); is && !refersTo(a.Spec.ParentRef, s) {
			return errOthers
		}
		return nil
	}
	err := a.remove(ctx, ip, own, nil)
	if errors.Is(err, errOthers) {
		return nil
	}
	return err
}

// remove removes an address, if it is the one that is meant.
func (a *addresses) remove(ctx context.Context, ip string, own rest.ValidateObjectFunc, is *types.UID) error {
	options := &metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	if is != nil {
		options.Preconditions = &metav1.Preconditions{UID: is}
	}
	_, _, err := a.ips.Delete(cluster(ctx), ip, own, options)
	if apierrors.IsNotFound(err) || is != nil && apierrors.IsConflict(err) {
		return nil
	}
	return err
}
