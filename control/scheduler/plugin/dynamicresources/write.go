package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/claims"
)

// Why a claim cannot be had any more by the time it is written.
var (
	errGone    = errors.New("it is another one, or is being deleted")
	errOther   = errors.New("it has got other devices meanwhile")
	errGivenUp = errors.New("it has lost its devices meanwhile")
	errInUse   = errors.New("it is in use by as many pods as may use it")
)

// writer writes claims.
type writer struct {
	client   kubernetes.Interface
	claims   fwk.ResourceClaimTracker
	informer cache.SharedIndexInformer // of claims
	// ready bounds the wait for devices to be made ready.
	ready time.Duration
}

func report(ctx context.Context, pod *corev1.Pod, err error) {
	klog.FromContext(ctx).Error(err, "claims are not given back", "pod", klog.KObj(pod))
}

// change has f change a claim, of which it is given a copy, until nobody has come between. The first try is with the
// claim as it is given, nil: as the API has it.
func (d *writer) change(
	ctx context.Context, known, o *resourcev1.ResourceClaim, f func(*resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error),
) (*resourcev1.ResourceClaim, error) {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if o == nil {
			var err error
			if o, err = d.client.ResourceV1().ResourceClaims(known.Namespace).Get(ctx, known.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		now := o.DeepCopy()
		o = nil
		if now.UID != known.UID {
			return errGone
		}
		var err error
		now, err = f(now)
		if err != nil {
			return err
		}
		o = now
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write claim %s/%s: %w", known.Namespace, known.Name, err)
	}
	// It fails where the claim is gone, which is heard of.
	_ = d.claims.AssumeClaimAfterAPICall(o)
	return o, nil
}

// reserve writes that a pod uses a claim, and the devices that were decided where it has none yet.
func (d *writer) reserve(
	ctx context.Context, known *resourcev1.ResourceClaim, plan *resourcev1.AllocationResult, pod *corev1.Pod,
) (*resourcev1.ResourceClaim, error) {
	api := d.client.ResourceV1().ResourceClaims(known.Namespace)
	return d.change(ctx, known, known, func(o *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		switch has := o.Status.Allocation; {
		case o.DeletionTimestamp != nil:
			return nil, errGone
		case has != nil && !claims.Same(has, plan):
			return nil, errOther
		case has == nil && known.Status.Allocation != nil:
			// The devices may be another claim's by now.
			return nil, errGivenUp
		case has == nil:
			if !slices.Contains(o.Finalizers, resourcev1.Finalizer) {
				o.Finalizers = append(o.Finalizers, resourcev1.Finalizer)
				var err error
				if o, err = api.Update(ctx, o, metav1.UpdateOptions{}); err != nil {
					return nil, err
				}
			}
			o.Status.Allocation = plan.DeepCopy()
			now := metav1.Now()
			o.Status.Allocation.AllocationTimestamp = &now
		}
		if slices.ContainsFunc(o.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
			return o, nil
		}
		if len(o.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize {
			return nil, errInUse
		}
		o.Status.ReservedFor = append(o.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
		return api.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	})
}

// forget has a claim not be reserved for a pod any more; free: nor have devices, if nobody else uses it.
func (d *writer) forget(ctx context.Context, known *resourcev1.ResourceClaim, pod types.UID, free bool) error {
	_, err := d.change(ctx, known, nil, func(o *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		n := len(o.Status.ReservedFor)
		o.Status.ReservedFor = slices.DeleteFunc(o.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod })
		free := free && len(o.Status.ReservedFor) == 0 && o.Status.Allocation != nil
		if free {
			o.Status.Allocation, o.Status.Devices = nil, nil
		}
		if n == len(o.Status.ReservedFor) && !free {
			return o, nil
		}
		return d.client.ResourceV1().ResourceClaims(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
	})
	return gone(err)
}

// gone is no error where what was to be given up is gone.
func gone(err error) error {
	if apierrors.IsNotFound(err) || errors.Is(err, errGone) {
		return nil
	}
	return err
}

// deallocate has a claim have no devices, if it is still as it is known.
func (d *writer) deallocate(ctx context.Context, known *resourcev1.ResourceClaim) error {
	o := known.DeepCopy()
	o.Status.Allocation, o.Status.ReservedFor, o.Status.Devices = nil, nil, nil
	o, err := d.client.ResourceV1().ResourceClaims(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("deallocate claim %s/%s: %w", known.Namespace, known.Name, err)
	}
	_ = d.claims.AssumeClaimAfterAPICall(o) // where it is gone, that is heard of
	return nil
}

// remove removes a claim that was made for resources of a pod: first its devices, then what keeps it, then the claim.
func (d *writer) remove(ctx context.Context, known *resourcev1.ResourceClaim) error {
	api := d.client.ResourceV1().ResourceClaims(known.Namespace)
	_, err := d.change(ctx, known, nil, func(o *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
		var err error
		if o.Status.Allocation != nil || len(o.Status.ReservedFor) > 0 {
			o.Status.Allocation, o.Status.ReservedFor, o.Status.Devices = nil, nil, nil
			if o, err = api.UpdateStatus(ctx, o, metav1.UpdateOptions{}); err != nil {
				return nil, err
			}
		}
		if n := len(o.Finalizers); n > 0 {
			o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
			if len(o.Finalizers) < n {
				return api.Update(ctx, o, metav1.UpdateOptions{})
			}
		}
		return o, nil
	})
	if err == nil {
		err = api.Delete(ctx, known.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &known.UID}})
	}
	if err = gone(err); err != nil {
		return fmt.Errorf("remove claim %s/%s: %w", known.Namespace, known.Name, err)
	}
	return nil
}
