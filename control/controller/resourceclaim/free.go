package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// next is the next thing to do with a claim. One write leads to the next: who is killed in between begins again here.
type next int

const (
	nothing next = iota
	// deallocate takes the pods that have ended from a claim, and its devices when no pod is left.
	deallocate
	// unprotect takes away what keeps a claim that has no devices.
	unprotect
	// discard deletes a claim that was made for a pod which has ended.
	discard
)

// decide is what to do with a claim of which the users that live still are known.
func decide(c *resourcev1.ResourceClaim, live []resourcev1.ResourceClaimConsumerReference, owner *corev1.Pod) next {
	protected := slices.Contains(c.Finalizers, resourcev1.Finalizer)
	unused := len(live) == 0
	switch {
	case len(live) < len(c.Status.ReservedFor):
		return deallocate
	case unused && c.DeletionTimestamp != nil && c.Status.Allocation != nil && protected:
		return deallocate
	case unused && c.DeletionTimestamp != nil && c.Status.Allocation == nil && protected:
		return unprotect
	case unused && c.DeletionTimestamp == nil && owner != nil && hasEnded(owner) && metav1.IsControlledBy(c, owner):
		return discard
	}
	return nothing
}

// errForeign is returned for a claim that is reserved for what is no pod.
var errForeign = errors.New("no pod is named")

// syncClaim takes pods that have ended from a claim, its devices when no pod is left, and what keeps it from deletion.
func (m *maker) syncClaim(ctx context.Context, name cache.ObjectName) error {
	c, err := m.claims.ResourceClaims(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find claim %s: %w", name, err)
	}
	live, err := m.live(ctx, c)
	if err != nil {
		return err
	}
	owner, err := m.owner(c)
	if err != nil {
		return err
	}
	switch decide(c, live, owner) {
	case deallocate:
		err = m.deallocate(ctx, c, live)
	case unprotect:
		o := c.DeepCopy()
		o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		_, err = m.client.ResourceV1().ResourceClaims(o.Namespace).Update(ctx, o, metav1.UpdateOptions{})
	case discard:
		err = m.client.ResourceV1().ResourceClaims(c.Namespace).Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
	case nothing:
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("free claim %s: %w", name, err)
	}
	return nil
}

// deallocate writes which pods are left, and that there are no devices when none is.
func (m *maker) deallocate(ctx context.Context, c *resourcev1.ResourceClaim, live []resourcev1.ResourceClaimConsumerReference) error {
	o := c.DeepCopy()
	o.Status.ReservedFor = live
	if len(live) == 0 {
		o.Status.Allocation, o.Status.Devices = nil, nil
	}
	_, err := m.client.ResourceV1().ResourceClaims(o.Namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return err
}

// live are the users of a claim that may go on using it.
func (m *maker) live(ctx context.Context, c *resourcev1.ResourceClaim) ([]resourcev1.ResourceClaimConsumerReference, error) {
	var live []resourcev1.ResourceClaimConsumerReference
	for _, r := range c.Status.ReservedFor {
		if r.APIGroup != "" || r.Resource != "pods" {
			return nil, fmt.Errorf("find user %s %s of claim %s/%s: %w", r.Resource, r.Name, c.Namespace, c.Name, errForeign)
		}
		uses, err := m.lives(ctx, c.Namespace, r.Name, r.UID)
		if err != nil {
			return nil, err
		}
		if uses {
			live = append(live, r)
		}
	}
	return live, nil
}

// lives says whether a pod is there that may use a claim. The cache may be behind the scheduler, who has written the
// pod into the claim: what the cache does not know the API is asked for.
func (m *maker) lives(ctx context.Context, namespace, name string, uid types.UID) (bool, error) {
	p, err := m.pods.Pods(namespace).Get(name)
	if err == nil && p.UID == uid {
		return !done(p), nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("find pod %s/%s: %w", namespace, name, err)
	}
	p, err = m.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return p.UID == uid && !done(p), nil
}

// done says whether a pod will use no claim again: it has ended, or is deleted and never had a node.
func done(p *corev1.Pod) bool {
	return hasEnded(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// owner is the pod that a claim was made for, nil: there is none, or another one of its name. What is left of a pod
// that is gone the garbage collector deletes.
func (m *maker) owner(c *resourcev1.ResourceClaim) (*corev1.Pod, error) {
	r := metav1.GetControllerOfNoCopy(c)
	if r == nil || r.Kind != "Pod" {
		return nil, nil
	}
	p, err := m.pods.Pods(c.Namespace).Get(r.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find pod %s/%s: %w", c.Namespace, r.Name, err)
	}
	if p.UID != r.UID {
		return nil, nil
	}
	return p, nil
}
