package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"
)

// How long, and of how many namespaces, it is known that the server has no limit ranges either.
const (
	askAgain        = 30 * time.Second
	namespacesAsked = 10_000
)

// newLimitRanger gives containers the requests and limits that a LimitRange of their namespace has as defaults, and
// holds containers, pods and claims to its bounds.
func newLimitRanger(g given) (checks, error) {
	ranges := g.informers.Core().V1().LimitRanges()
	lister := ranges.Lister()
	empty := utilcache.NewLRUExpireCache(namespacesAsked)
	each := func(ctx context.Context, a admission.Attributes, do func(*corev1.LimitRange) error) error {
		all, err := lister.LimitRanges(a.GetNamespace()).List(labels.Everything())
		if err != nil {
			return admission.NewForbidden(a, fmt.Errorf("list limit ranges: %w", err))
		}
		// One that was just made may be too new for the informers: the server is asked, now and then.
		if _, asked := empty.Get(a.GetNamespace()); len(all) == 0 && !asked {
			list, err := g.client.CoreV1().LimitRanges(a.GetNamespace()).List(ctx, metav1.ListOptions{})
			if err != nil {
				return admission.NewForbidden(a, fmt.Errorf("list limit ranges: %w", err))
			}
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
			if len(all) == 0 {
				empty.Add(a.GetNamespace(), struct{}{}, askAgain)
			}
		}
		var refusals []error
		for _, r := range all {
			if r.DeletionTimestamp == nil {
				refusals = append(refusals, do(r))
			}
		}
		if err := errors.Join(refusals...); err != nil {
			return admission.NewForbidden(a, errors.New(strings.ReplaceAll(err.Error(), "\n", ", ")))
		}
		return nil
	}
	return checks{
		operations: onWrite(), resources: []string{"pods", "pods/resize", "persistentvolumeclaims"},
		synced: []cache.InformerSynced{ranges.Informer().HasSynced},
		admit: func(ctx context.Context, a admission.Attributes) error {
			pod, ok := a.GetObject().(*corev1.Pod)
			if a.GetResource().Resource != "pods" || a.GetOperation() != admission.Create {
				return nil
			}
			if !ok {
				return wrongType(a, a.GetObject())
			}
			return each(ctx, a, func(r *corev1.LimitRange) error { return defaultLimits(pod, r) })
		},
		validate: func(ctx context.Context, a admission.Attributes) error {
			switch o := a.GetObject().(type) {
			case *corev1.Pod:
				if a.GetOperation() == admission.Update && a.GetSubresource() != "resize" {
					return nil // resources of a pod change only there
				}
				return each(ctx, a, func(r *corev1.LimitRange) error { return limitPod(o, r) })
			case *corev1.PersistentVolumeClaim:
				return each(ctx, a, func(r *corev1.LimitRange) error { return limitClaim(o, r) })
			}
			return wrongType(a, a.GetObject())
		},
	}, nil
}

// defaultLimits fills in what containers do not say. A limit alone is a request of as much, as always.
func defaultLimits(pod *corev1.Pod, r *corev1.LimitRange) error {
	for _, limit := range r.Spec.Limits {
		if limit.Type != corev1.LimitTypeContainer {
			continue
		}
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range containers {
				c := &containers[i].Resources
				c.Limits = withDefaults(c.Limits, limit.Default)
				c.Requests = withDefaults(c.Requests, limit.DefaultRequest)
			}
		}
	}
	return nil
}

func withDefaults(have, defaults corev1.ResourceList) corev1.ResourceList {
	for name, q := range defaults {
		if _, has := have[name]; has {
			continue
		}
		if have == nil {
			have = corev1.ResourceList{}
		}
		have[name] = q.DeepCopy()
	}
	return have
}

func limitPod(pod *corev1.Pod, r *corev1.LimitRange) error {
	var all []error
	for _, limit := range r.Spec.Limits {
		switch limit.Type {
		case corev1.LimitTypeContainer:
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				all = append(all, bounds(limit, c.Resources.Requests, c.Resources.Limits))
			}
		case corev1.LimitTypePod:
			all = append(all, bounds(limit, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}),
				resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})))
		}
	}
	return errors.Join(all...)
}

func limitClaim(claim *corev1.PersistentVolumeClaim, r *corev1.LimitRange) error {
	var all []error
	for _, limit := range r.Spec.Limits {
		if limit.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for _, name := range sorted(limit.Min) {
			all = append(all, least(limit, name, claim.Spec.Resources.Requests, nil))
		}
		for _, name := range sorted(limit.Max) {
			least, have := limit.Max[name], claim.Spec.Resources.Requests[name]
			if have.Cmp(least) > 0 {
				all = append(all, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, limit.Type, least.String(), have.String()))
			}
		}
	}
	return errors.Join(all...)
}

func sorted(l corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// bounds holds requests and limits to the least, the most and the ratio of one to the other.
func bounds(limit corev1.LimitRangeItem, requests, limits corev1.ResourceList) error {
	var all []error
	for _, name := range sorted(limit.Min) {
		all = append(all, least(limit, name, requests, limits))
	}
	for _, name := range sorted(limit.Max) {
		most := limit.Max[name]
		have, has := limits[name]
		request, requested := requests[name]
		switch {
		case !has:
			all = append(all, fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, limit.Type, most.String()))
		case have.Cmp(most) > 0:
			all = append(all, fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, limit.Type, most.String(), have.String()))
		case requested && request.Cmp(most) > 0:
			all = append(all, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, limit.Type, most.String(), request.String()))
		}
	}
	for _, name := range sorted(limit.MaxLimitRequestRatio) {
		all = append(all, ratio(limit, name, requests, limits))
	}
	return errors.Join(all...)
}

func least(limit corev1.LimitRangeItem, name corev1.ResourceName, requests, limits corev1.ResourceList) error {
	least := limit.Min[name]
	have, has := requests[name]
	switch {
	case !has:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, limit.Type, least.String())
	case have.Cmp(least) < 0:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, limit.Type, least.String(), have.String())
	}
	if most, limited := limits[name]; limited && most.Cmp(least) < 0 {
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, limit.Type, least.String(), most.String())
	}
	return nil
}

func ratio(limit corev1.LimitRangeItem, name corev1.ResourceName, requests, limits corev1.ResourceList) error {
	most := limit.MaxLimitRequestRatio[name]
	request, requested := requests[name]
	have, has := limits[name]
	wrong := fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, limit.Type, most.String())
	if !requested || request.IsZero() {
		return wrong
	}
	if !has || have.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, limit.Type, most.String())
	}
	if amount(have)/amount(request) > amount(most) {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, limit.Type, most.String(), amount(have)/amount(request))
	}
	return nil
}

// amount is a quantity for a ratio, where being exact to the last digit does not matter.
func amount(q resource.Quantity) float64 { return q.AsApproximateFloat64() }
