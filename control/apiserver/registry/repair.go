package registry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Repair makes who has which address and port what the services say. What nobody uses, and what another has than who
// uses it, is put right when it was so the time before, too: a service that is being written has taken what it will
// say. It has one caller at a time.
type Repair struct {
	services *services
	all      *REST
	wrong    map[string]bool
}

// Run does it once.
func (r *Repair) Run(ctx context.Context) error {
	o, err := r.all.List(request.WithNamespace(ctx, metav1.NamespaceAll), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	ips, numbers := map[string][]*corev1.Service{}, map[int32][]*corev1.Service{}
	list := o.(*corev1.ServiceList)
	for i := range list.Items {
		svc := &list.Items[i]
		for _, ip := range addressesOf(svc) {
			ips[ip] = append(ips[ip], svc)
		}
		for _, p := range portsOf(svc) {
			numbers[p] = append(numbers[p], svc)
		}
	}
	r.tell(ips, numbers)
	wrong := map[string]bool{}
	err = errors.Join(r.addresses(ctx, ips, wrong), r.ports(ctx, numbers, wrong))
	r.wrong = wrong
	return err
}

// tell tells of what several services have: none of them can be told to have it alone.
func (r *Repair) tell(ips map[string][]*corev1.Service, numbers map[int32][]*corev1.Service) {
	several := 0
	var first string
	for ip, all := range ips {
		if len(all) > 1 {
			several++
			first = fmt.Sprintf("%s is of %s and %s", ip, ownerOf(all[0]), ownerOf(all[1]))
		}
	}
	for p, all := range numbers {
		if len(all) > 1 {
			several++
			first = fmt.Sprintf("port %d is of %s and %s", p, ownerOf(all[0]), ownerOf(all[1]))
		}
	}
	if several > 0 {
		r.services.log.Warn("addresses or node ports are of several services each: make all but one of these anew", "count", several, "one", first)
	}
}

// again says whether something was wrong the time before, and notes that it is now.
func (r *Repair) again(key string, wrong map[string]bool) bool {
	wrong[key] = true
	return r.wrong[key]
}

func (r *Repair) addresses(ctx context.Context, used map[string][]*corev1.Service, wrong map[string]bool) error {
	o, err := r.services.ips.ips.List(cluster(ctx), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("list addresses of services: %w", err)
	}
	var errs []error
	held := map[string]bool{}
	for i := range o.(*networkingv1.IPAddressList).Items {
		a := &o.(*networkingv1.IPAddressList).Items[i]
		if right(a, used[a.Name]) || !r.again("ip "+string(a.UID), wrong) {
			held[a.Name] = true
			continue
		}
		if err := r.services.ips.remove(ctx, a.Name, rest.ValidateAllObjectFunc, &a.UID); err != nil {
			errs = append(errs, err)
		}
	}
	for text, all := range used {
		ip, err := netip.ParseAddr(text)
		if err != nil || held[text] {
			continue
		}
		if err := r.services.ips.claim(ctx, all[0], ip, false); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// right says whether an address is of one of the services that use it. One that no service uses is right where it is
// not this server that has given it to one: others keep addresses out of the ranges so.
func right(a *networkingv1.IPAddress, users []*corev1.Service) bool {
	ref := a.Spec.ParentRef
	if len(users) == 0 {
		return !ofService(ref) || a.Labels[networkingv1.LabelManagedBy] != allocator
	}
	return slices.ContainsFunc(users, func(s *corev1.Service) bool { return refersTo(ref, s) })
}

func (r *Repair) ports(ctx context.Context, used map[int32][]*corev1.Service, wrong map[string]bool) error {
	held, err := r.services.ports.held(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for p, owner := range held {
		is := func(s *corev1.Service) bool { return ownerOf(s) == owner }
		if slices.ContainsFunc(used[p], is) || !r.again(fmt.Sprint("port ", p, " of ", owner), wrong) {
			continue
		}
		if err := r.services.ports.free(ctx, owner, p); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(held, p)
	}
	for p, all := range used {
		if _, ok := held[p]; ok {
			continue
		}
		if err := r.services.ports.take(ctx, ownerOf(all[0]), p, false); err != nil && !errors.Is(err, errPortTaken) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
