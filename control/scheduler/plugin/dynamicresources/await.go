package dynamicresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// known bounds how long a claim that was made is not heard of.
const known = 30 * time.Second

// errNotReady is returned where devices are not made ready in time.
var errNotReady = errors.New("its devices are not ready in time")

// bindExtended makes the claim of a pod's resources, gives it its devices, and tells the pod of it.
func (d *writer) bindExtended(ctx context.Context, w *wanted, special *resourcev1.ResourceClaim, pod *corev1.Pod) error {
	e := w.extended
	made := e.made
	if e.stale != nil {
		if err := d.remove(ctx, e.stale); err != nil {
			return err
		}
	}
	if made == nil && special == nil {
		return nil // the node has all itself
	}
	if made == nil {
		o := &resourcev1.ResourceClaim{ObjectMeta: *special.ObjectMeta.DeepCopy(), Spec: special.Spec}
		o.Name, o.UID, o.Finalizers = "", "", []string{resourcev1.Finalizer}
		created, err := d.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make claim for resources of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		w.wrote(created)
		if made, err = d.reserve(ctx, created, special.Status.Allocation, pod); err != nil {
			return err
		}
		// What is decided counts by another UID. It must not be given up before the claim is heard of.
		if err := d.await(ctx, known, func() (bool, error) {
			_, err := d.claims.Get(made.Namespace, made.Name)
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil, err
		}); err != nil {
			return fmt.Errorf("hear of claim %s/%s: %w", made.Namespace, made.Name, err)
		}
		_ = d.claims.AssumeClaimAfterAPICall(made) // it was there just now
	}
	return d.tellPod(ctx, pod, &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: made.Name, RequestMappings: e.mappings(made)})
}

// tellPod writes which claim has the devices that a pod asks for as resources.
func (d *writer) tellPod(ctx context.Context, pod *corev1.Pod, status *corev1.PodExtendedResourceClaimStatus) error {
	if resourceclaim.PodExtendedStatusEqual(pod.Status.ExtendedResourceClaimStatus, status) {
		return nil
	}
	// The UID keeps it from a pod that was made again under the name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"extendedResourceClaimStatus": status}})
	if err == nil {
		_, err = d.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("write status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// await waits, so long at most, until a claim has changed such that f says yes.
func (d *writer) await(ctx context.Context, most time.Duration, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handle, err := d.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
	})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	defer func() { _ = d.informer.RemoveEventHandler(handle) }() // of an informer that runs or has ended
	for {
		if done, err := f(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// binds says whether devices have to be made ready before a pod is bound.
func binds(a *resourcev1.AllocationResult) bool {
	return a != nil && slices.ContainsFunc(a.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool { return len(r.BindingConditions) > 0 })
}

// awaitReady waits until the drivers have made the devices ready that need it. Where one cannot, its claim is given
// other devices by the next attempt.
func (d *writer) awaitReady(ctx context.Context, w *wanted) error {
	w.mu.Lock()
	written := slices.Clone(w.written)
	w.mu.Unlock()
	for _, o := range written {
		if !binds(o.Status.Allocation) {
			continue
		}
		left := d.ready
		if at := o.Status.Allocation.AllocationTimestamp; at != nil {
			left = time.Until(at.Add(d.ready)) // as another attempt may have waited before
		}
		err := d.await(ctx, left, func() (bool, error) {
			now, err := d.claims.Get(o.Namespace, o.Name)
			switch {
			case err != nil:
				return false, err
			case now.UID != o.UID || now.Status.Allocation == nil:
				return false, errGivenUp
			}
			return ready(now)
		})
		if errors.Is(err, context.DeadlineExceeded) {
			err = errNotReady
		}
		if err != nil {
			if ctx.Err() == nil {
				w.failedUID(o.UID)
			}
			return fmt.Errorf("wait for devices of claim %s/%s: %w", o.Namespace, o.Name, err)
		}
	}
	return nil
}

// ready says whether the drivers say of all devices of a claim that pods may be bound; an error: of one they never
// will.
func ready(c *resourcev1.ResourceClaim) (bool, error) {
	all := true
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		conditions := conditionsOf(c, r)
		for _, kind := range r.BindingFailureConditions {
			if at := meta.FindStatusCondition(conditions, kind); at != nil && at.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("device %s/%s/%s: %s: %s", r.Driver, r.Pool, r.Device, kind, at.Message)
			}
		}
		for _, kind := range r.BindingConditions {
			all = all && meta.IsStatusConditionTrue(conditions, kind)
		}
	}
	return all, nil
}

func conditionsOf(c *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult) []metav1.Condition {
	for _, s := range c.Status.Devices {
		same := (s.ShareID == nil) == (r.ShareID == nil) && (s.ShareID == nil || *s.ShareID == string(*r.ShareID))
		if s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device && same {
			return s.Conditions
		}
	}
	return nil
}
