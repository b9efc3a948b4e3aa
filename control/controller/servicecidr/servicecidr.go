// Package servicecidr keeps ranges of services that are deleted as long as a service has an address of theirs.
package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"

	"github.com/berth-node/berth/control/controller"
)

const (
	// finalizer is Kubernetes' own.
	finalizer = "networking.k8s.io/service-cidr-finalizer"
	// settle is how long a range is kept that nobody has an address of: a service that was being made when the range
	// was deleted may have one yet.
	settle = 10 * time.Second
)

type keeper struct {
	client    kubernetes.Interface
	ranges    networkinglisters.ServiceCIDRLister
	addresses networkinglisters.IPAddressLister
	now       func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, informers networkinginformers.Interface, log *slog.Logger) controller.Controller {
	k := &keeper{client, informers.ServiceCIDRs().Lister(), informers.IPAddresses().Lister(), time.Now}
	return controller.NewLoop(log, 1, k.sync).
		WatchChanges(informers.IPAddresses().Informer(), ofAddress).
		Watch(informers.ServiceCIDRs().Informer(), ofRange)
}

// ending is the key of all ranges that are deleted. No range has it for its name.
const ending = ""

// ofAddress is what waits for an address to go: which range it was of does not matter, they are looked at together.
func ofAddress(_, after any) []string {
	if after != nil {
		return nil
	}
	return []string{ending}
}

// ofRange is a range, and those that are deleted: it may have their addresses, too.
func ofRange(o any) []string { return append(controller.Name(o), ending) }

func (k *keeper) sync(ctx context.Context, name string) (time.Duration, error) {
	if name == ending {
		return k.end(ctx)
	}
	r, err := k.ranges.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find range %s: %w", name, err)
	}
	if r.DeletionTimestamp != nil {
		return 0, nil
	}
	if !slices.Contains(r.Finalizers, finalizer) {
		r = r.DeepCopy()
		r.Finalizers = append(r.Finalizers, finalizer)
		_, err := k.client.NetworkingV1().ServiceCIDRs().Update(ctx, r, metav1.UpdateOptions{})
		return 0, err // it is looked at again when that is seen
	}
	return 0, k.say(ctx, r, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes Service CIDR is ready",
	})
}

// end gives up the ranges that are deleted and that nobody has an address of any more, and says when to look again. All
// of them are held to all addresses at once: there may be thousands of the ones, and of the others.
func (k *keeper) end(ctx context.Context) (time.Duration, error) {
	all, err := k.ranges.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list ranges: %w", err)
	}
	var live, gone []*networkingv1.ServiceCIDR
	for _, r := range all {
		switch {
		case r.DeletionTimestamp == nil:
			live = append(live, r)
		case slices.Contains(r.Finalizers, finalizer):
			gone = append(gone, r)
		}
	}
	if len(gone) == 0 {
		return 0, nil
	}
	addresses, err := k.addresses.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("list addresses: %w", err)
	}
	used := usedOf(gone, live, addresses)
	var again time.Duration
	var errs []error
	for _, r := range gone {
		left := r.DeletionTimestamp.Add(settle).Sub(k.now())
		switch {
		case used[r.Name]:
			errs = append(errs, k.say(ctx, r, metav1.Condition{
				Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
				Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
			}))
		case left > 0:
			if again == 0 || left < again {
				again = left
			}
		default:
			errs = append(errs, k.giveUp(ctx, r))
		}
	}
	return again, errors.Join(errs...)
}

func (k *keeper) giveUp(ctx context.Context, r *networkingv1.ServiceCIDR) error {
	r = r.DeepCopy()
	r.Finalizers = slices.DeleteFunc(r.Finalizers, func(f string) bool { return f == finalizer })
	if _, err := k.client.NetworkingV1().ServiceCIDRs().Update(ctx, r, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("give up range %s: %w", r.Name, err)
	}
	return nil
}

// usedOf are the names of the ranges of some that an address is in which is in none of the others.
func usedOf(some, others []*networkingv1.ServiceCIDR, addresses []*networkingv1.IPAddress) map[string]bool {
	in, apart := newCover(some), newCover(others)
	used := map[string]bool{}
	for _, a := range addresses {
		ip, err := netip.ParseAddr(a.Name)
		if err != nil || len(apart.of(ip)) > 0 {
			continue
		}
		for _, p := range in.of(ip) {
			for _, name := range in.names[p] {
				used[name] = true
			}
			delete(in.names, p) // one address of theirs is enough
		}
	}
	return used
}

// cover finds the ranges that an address is in by asking once for each length that ranges have, of which there are at
// most as many as an address has bits.
type cover struct {
	names map[netip.Prefix][]string
	bits  map[bool]map[int]bool // the lengths, by whether they are of IPv6
}

func newCover(all []*networkingv1.ServiceCIDR) cover {
	c := cover{map[netip.Prefix][]string{}, map[bool]map[int]bool{false: {}, true: {}}}
	for _, r := range all {
		for _, text := range r.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				c.names[p.Masked()] = append(c.names[p.Masked()], r.Name)
				c.bits[p.Addr().Is6()][p.Bits()] = true
			}
		}
	}
	return c
}

// of are the ranges that an address is in.
func (c cover) of(ip netip.Addr) []netip.Prefix {
	var all []netip.Prefix
	for bits := range c.bits[ip.Is6()] {
		p, err := ip.Prefix(bits)
		if _, is := c.names[p]; err == nil && is {
			all = append(all, p)
		}
	}
	return all
}

func (k *keeper) say(ctx context.Context, r *networkingv1.ServiceCIDR, c metav1.Condition) error {
	r = r.DeepCopy()
	c.LastTransitionTime = metav1.NewTime(k.now())
	if !meta.SetStatusCondition(&r.Status.Conditions, c) {
		return nil
	}
	if _, err := k.client.NetworkingV1().ServiceCIDRs().UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of range %s: %w", r.Name, err)
	}
	return nil
}
