// Package protection has claims, volumes and classes of attributes stay until nobody uses them any more: they have a
// finalizer from when they are made, and lose it when they are deleted and not in use.
package protection

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

const workers = 2

// object is what is protected.
type object interface {
	metav1.Object
	comparable
}

// guard protects the objects of one kind.
type guard[T object] struct {
	finalizer string
	find      func(cache.ObjectName) (T, error)
	copy      func(T) T
	write     func(context.Context, T) error
	// used says whether an object is in use: first by what is known, then by what the API says now.
	used, live func(context.Context, T) (bool, error)
}

// sync gives an object the finalizer, or takes it away. One that is used is looked at again when its users change.
func (g guard[T]) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	o, err := g.find(key)
	if errors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", key, err)
	}
	has := slices.Contains(o.GetFinalizers(), g.finalizer)
	if (o.GetDeletionTimestamp() != nil) != has {
		return 0, nil
	}
	c := g.copy(o)
	if has {
		for _, used := range []func(context.Context, T) (bool, error){g.used, g.live} {
			if used == nil {
				continue
			}
			if yes, err := used(ctx, o); err != nil || yes {
				return 0, err
			}
		}
		c.SetFinalizers(slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == g.finalizer }))
	} else {
		c.SetFinalizers(append(slices.Clone(o.GetFinalizers()), g.finalizer))
	}
	if err := g.write(ctx, c); err != nil && !errors.IsNotFound(err) {
		return 0, fmt.Errorf("write finalizers of %s: %w", key, err)
	}
	return 0, nil
}

func own[T object](o any) []cache.ObjectName {
	if t, ok := o.(T); ok {
		return []cache.ObjectName{cache.MetaObjectToName(t)}
	}
	return nil
}
