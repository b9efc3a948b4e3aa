package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"
)

// maxDisrupted bounds the pods that a budget waits to see end.
const maxDisrupted = 2000

// evictionREST deletes pods as far as the budgets of disruptions have it.
type evictionREST struct {
	pods, budgets *REST
	budgetStatus  *partREST
}

// New implements [rest.Storage].
func (evictionREST) New() runtime.Object { return &policyv1.Eviction{} }

// Destroy implements [rest.Storage].
func (evictionREST) Destroy() {}

// GroupVersionKind implements [rest.GroupVersionKindProvider]: the subresource is of another group than its pod.
func (evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// Create implements [rest.NamedCreater].
func (e evictionREST) Create(ctx context.Context, name string, o runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	eviction, ok := o.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an Eviction: %T", o))
	}
	if name != eviction.Name {
		return nil, apierrors.NewBadRequest("the name in the URL is not the name of the Eviction")
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopy()); err != nil {
			return nil, err
		}
	}
	del := eviction.DeleteOptions.DeepCopy()
	if del == nil {
		del = &metav1.DeleteOptions{}
	}
	if len(options.DryRun) > 0 {
		del.DryRun = options.DryRun
	}
	if err := e.evict(ctx, name, del); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (e evictionREST) evict(ctx context.Context, name string, del *metav1.DeleteOptions) error {
	o, err := e.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return err
	}
	p := o.(*corev1.Pod)
	unset := del.Preconditions == nil || del.Preconditions.ResourceVersion == nil
	pin := false
	if !disrupted(p) {
		budget, err := e.budgetOf(ctx, p)
		if err != nil {
			return err
		}
		if budget != nil {
			// A pod that is not ready is no loss, as long as it is still not when it is deleted.
			if pin = !podIs(p, corev1.PodReady) && spares(budget); !pin {
				if err := e.take(ctx, p, budget.Name, dryrun.IsDryRun(del.DryRun)); err != nil {
					return err
				}
			}
		}
	} else {
		pin = p.Status.Phase == corev1.PodPending
	}
	if pin && unset {
		if del.Preconditions == nil {
			del.Preconditions = &metav1.Preconditions{}
		}
		del.Preconditions.ResourceVersion = &p.ResourceVersion
	}
	err = e.remove(ctx, p, del)
	if apierrors.IsConflict(err) && pin && unset {
		return tooMany(name, "The pod has changed while it was evicted.")
	}
	return err
}

// disrupted says that a pod's end disrupts nobody: it has ended, ends, or never began.
func disrupted(p *corev1.Pod) bool {
	switch p.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return p.DeletionTimestamp != nil
}

// spares says that a budget lets pods go that are not ready.
func spares(b *policyv1.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// budgetOf finds the one budget that a pod counts for.
func (e evictionREST) budgetOf(ctx context.Context, p *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	if len(p.Labels) == 0 {
		return nil, nil
	}
	o, err := e.budgets.List(ctx, &internalversion.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(o.(*policyv1.PodDisruptionBudgetList).Items, func(b policyv1.PodDisruptionBudget) bool {
		s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		return err != nil || !s.Matches(labels.Set(p.Labels))
	})
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return &all[0], nil
	}
	return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
	}}
}

// take takes one disruption from a budget, or says why there is none to take.
func (e evictionREST) take(ctx context.Context, p *corev1.Pod, name string, dry bool) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := e.budgets.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		b := o.(*policyv1.PodDisruptionBudget).DeepCopy()
		s := &b.Status
		forbid := func(text string) error {
			return apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), name, fmt.Errorf("%s", text))
		}
		switch {
		case s.ObservedGeneration < b.Generation:
			return tooMany(name, "The disruption budget "+name+" is still being processed by the server.")
		case s.DisruptionsAllowed < 0:
			return forbid("pdb disruptions allowed is negative")
		case len(s.DisruptedPods) > maxDisrupted:
			return forbid("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
		case s.DisruptionsAllowed == 0:
			return tooMany(name, fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", name, s.DesiredHealthy, s.CurrentHealthy))
		}
		if dry {
			return nil
		}
		s.DisruptionsAllowed--
		if s.DisruptionsAllowed == 0 {
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{
				Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason,
				ObservedGeneration: s.ObservedGeneration,
			})
		}
		// The pod counts as gone from now on: whoever keeps the budget does not see it go at once.
		if s.DisruptedPods == nil {
			s.DisruptedPods = map[string]metav1.Time{}
		}
		s.DisruptedPods[p.Name] = metav1.Time{Time: time.Now()}
		_, _, err = e.budgetStatus.Update(ctx, name, rest.DefaultUpdatedObjectInfo(b), rest.ValidateAllObjectFunc,
			rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	})
}

func tooMany(budget, message string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
	err.ErrStatus.Details.Name = budget
	return err
}

// remove deletes the pod, which says why it ends before it does.
func (e evictionREST) remove(ctx context.Context, p *corev1.Pod, del *metav1.DeleteOptions) error {
	if !dryrun.IsDryRun(del.DryRun) {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			now := old.DeepCopyObject().(*corev1.Pod)
			if c := del.Preconditions; c != nil && c.ResourceVersion != nil && *c.ResourceVersion != now.ResourceVersion {
				return nil, apierrors.NewConflict(corev1.Resource("pods"), now.Name, fmt.Errorf("it has changed"))
			}
			setPodCondition(now, corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
			})
			return now, nil
		})
		status := newPart(e.pods, part{name: "status", writes: []string{"status"}, prepare: func(o, old runtime.Object) { keepBut(o, old, "status") }})
		o, _, err := status.Update(ctx, p.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		if del.Preconditions != nil && del.Preconditions.ResourceVersion != nil {
			version := metaOf(o).GetResourceVersion()
			del.Preconditions.ResourceVersion = &version
		}
	}
	_, _, err := e.pods.Delete(ctx, p.Name, rest.ValidateAllObjectFunc, del)
	return err
}
