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
)

// Repair makes who has which address and port what the services say. What nobody uses is given back when it was so the
// time before, too: a service that is being written has taken what it will say. It has one caller at a time.
type Repair struct {
	services *services
	all      *REST
	unused   map[string]bool
}

// Run does it once.
func (r *Repair) Run(ctx context.Context) error {
	o, err := r.all.List(request.WithNamespace(ctx, metav1.NamespaceAll), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	ips, numbers := map[string]*corev1.Service{}, map[int32]*corev1.Service{}
	list := o.(*corev1.ServiceList)
	for i := range list.Items {
		svc := &list.Items[i]
		for _, ip := range addressesOf(svc) {
			ips[ip] = svc
		}
		for _, p := range portsOf(svc) {
			numbers[p] = svc
		}
	}
	unused := map[string]bool{}
	err = errors.Join(r.addresses(ctx, ips, unused), r.ports(ctx, numbers, unused))
	r.unused = unused
	return err
}

func (r *Repair) addresses(ctx context.Context, used map[string]*corev1.Service, unused map[string]bool) error {
	o, err := r.services.ips.ips.List(cluster(ctx), &internalversion.ListOptions{})
	if err != nil {
		return fmt.Errorf("list addresses of services: %w", err)
	}
	var errs []error
	held := map[string]bool{}
	for _, a := range o.(*networkingv1.IPAddressList).Items {
		held[a.Name] = true
		ref := a.Spec.ParentRef
		if used[a.Name] != nil || ref == nil || ref.Group != "" || ref.Resource != "services" {
			continue
		}
		if key := "ip " + a.Name; r.unused[key] {
			errs = append(errs, r.services.ips.free(ctx, a.Name))
		} else {
			unused[key] = true
		}
	}
	for text, svc := range used {
		ip, err := netip.ParseAddr(text)
		if err != nil || held[text] {
			continue
		}
		if err := r.services.ips.claim(ctx, svc, ip, false); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Repair) ports(ctx context.Context, used map[int32]*corev1.Service, unused map[string]bool) error {
	held, err := r.services.ports.held(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for p, owner := range held {
		if used[p] != nil {
			continue
		}
		if key := fmt.Sprint("port ", p, " of ", owner); r.unused[key] {
			errs = append(errs, r.services.ports.free(ctx, p))
		} else {
			unused[key] = true
		}
	}
	for p, svc := range used {
		if _, ok := held[p]; ok {
			continue
		}
		if err := r.services.ports.take(ctx, svc.Namespace+"/"+svc.Name, p, false); err != nil && !errors.Is(err, errPortTaken) {
			errs = append(errs, err)
		}
	}
	return errors.Join(slices.Clip(errs)...)
}
