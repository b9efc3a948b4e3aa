package owned

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Claim is by what an owner's objects are told from others: they refer to it and its selector matches them. One that
// refers to nobody and matches is adopted; one that refers to it and does not match is released.
type Claim[T metav1.Object] struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Takes says, if given, whether an object that nobody has may be adopted.
	Takes func(T) bool
	// Fresh reads the owner from the API before the first adoption: a cache may have one that is deleted, or another
	// one of the name.
	Fresh func(context.Context) (metav1.Object, error)
	// Patch changes an object by a strategic merge patch.
	Patch func(context.Context, T, []byte) (T, error)
}

// Of are the owner's of the objects that are its, and of those that are nobody's.
func (c Claim[T]) Of(ctx context.Context, own, orphans []T) ([]T, error) {
	var all []T
	var failed []error
	for _, o := range own {
		switch {
		case c.Selector.Matches(labels.Set(o.GetLabels())):
			all = append(all, o)
		case c.Owner.GetDeletionTimestamp() == nil:
			failed = append(failed, c.release(ctx, o))
		}
	}
	if c.Owner.GetDeletionTimestamp() != nil {
		return all, errors.Join(failed...)
	}
	asked := false
	for _, o := range orphans {
		if o.GetDeletionTimestamp() != nil || !c.Selector.Matches(labels.Set(o.GetLabels())) || c.Takes != nil && !c.Takes(o) {
			continue
		}
		if !asked {
			if err := c.mayAdopt(ctx); err != nil {
				return all, errors.Join(append(failed, err)...)
			}
			asked = true
		}
		adopted, err := c.adopt(ctx, o)
		if err == nil {
			all = append(all, adopted)
		}
		if !apierrors.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	return all, errors.Join(failed...)
}

func (c Claim[T]) mayAdopt(ctx context.Context) error {
	now, err := c.Fresh(ctx)
	if err != nil {
		return fmt.Errorf("read %s %s/%s: %w", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(), err)
	}
	if now.GetUID() != c.Owner.GetUID() || now.GetDeletionTimestamp() != nil {
		return fmt.Errorf("adopt for %s %s/%s: it is being deleted, or another one", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName())
	}
	return nil
}

func (c Claim[T]) adopt(ctx context.Context, o T) (T, error) {
	// The UID keeps it from another object that was made under the name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.GetUID(), "ownerReferences": []*metav1.OwnerReference{metav1.NewControllerRef(c.Owner, c.Kind)},
	}})
	if err == nil {
		o, err = c.Patch(ctx, o, patch)
	}
	if err != nil {
		return o, fmt.Errorf("adopt %s: %w", o.GetName(), err)
	}
	return o, nil
}

func (c Claim[T]) release(ctx context.Context, o T) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.GetUID(), "ownerReferences": []map[string]any{{"$patch": "delete", "uid": c.Owner.GetUID()}},
	}})
	if err == nil {
		_, err = c.Patch(ctx, o, patch)
	}
	// An object of another UID, or none that refers to the owner, is not its any more.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
		return fmt.Errorf("release %s: %w", o.GetName(), err)
	}
	return nil
}
