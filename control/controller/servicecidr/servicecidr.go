// Package servicecidr keeps ranges of services that are deleted as long as a service has an address of theirs.
package servicecidr

import (
	"context"
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
		WatchChanges(informers.IPAddresses().Informer(), k.ofAddress).
		Watch(informers.ServiceCIDRs().Informer(), k.ofRange)
}

// ofAddress are the ranges that wait for an address to go.
func (k *keeper) ofAddress(_, after any) []string {
	if after != nil {
		return nil
	}
	return k.deleted()
}

// ofRange is a range, and those that are deleted: it may have their addresses, too.
func (k *keeper) ofRange(o any) []string { return append(controller.Name(o), k.deleted()...) }

func (k *keeper) deleted() []string {
	all, err := k.ranges.List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	var names []string
	for _, r := range all {
		if r.DeletionTimestamp != nil {
			names = append(names, r.Name)
		}
	}
	return names
}

func (k *keeper) sync(ctx context.Context, name string) (time.Duration, error) {
	r, err := k.ranges.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find range %s: %w", name, err)
	}
	if r.DeletionTimestamp == nil {
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
	if !slices.Contains(r.Finalizers, finalizer) {
		return 0, nil
	}
	used, err := k.used(r)
	if err != nil {
		return 0, err
	}
	if used {
		return 0, k.say(ctx, r, metav1.Condition{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: networkingv1.ServiceCIDRReasonTerminating,
			Message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
		})
	}
	if left := r.DeletionTimestamp.Add(settle).Sub(k.now()); left > 0 {
		return left, nil
	}
	r = r.DeepCopy()
	r.Finalizers = slices.DeleteFunc(r.Finalizers, func(f string) bool { return f == finalizer })
	if _, err := k.client.NetworkingV1().ServiceCIDRs().Update(ctx, r, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("give up range %s: %w", name, err)
	}
	return 0, nil
}

// used says whether anybody has an address of a range that no other range has.
func (k *keeper) used(r *networkingv1.ServiceCIDR) (bool, error) {
	all, err := k.ranges.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list ranges: %w", err)
	}
	var others []netip.Prefix
	for _, o := range all {
		if o.Name != r.Name && o.DeletionTimestamp == nil {
			others = append(others, prefixes(o)...)
		}
	}
	addresses, err := k.addresses.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		ip, err := netip.ParseAddr(a.Name)
		in := func(p netip.Prefix) bool { return p.Contains(ip) }
		if err == nil && slices.ContainsFunc(prefixes(r), in) && !slices.ContainsFunc(others, in) {
			return true, nil
		}
	}
	return false, nil
}

func prefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
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
