package registry

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func namespaceHooks() hooks {
	return hooks{
		create: func(_ context.Context, o runtime.Object) {
			n := o.(*corev1.Namespace)
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		},
		update: func(_ context.Context, o, old runtime.Object) {
			o.(*corev1.Namespace).Spec.Finalizers = old.(*corev1.Namespace).Spec.Finalizers
		},
	}
}

// finalizeREST serves who takes a finalizer of a namespace away. It can do nothing else, and hides the rest of a part.
type finalizeREST struct{ part *partREST }

func newFinalize(r *REST) finalizeREST {
	return finalizeREST{newPart(r, part{
		name: "finalize", writes: []string{"spec"}, prepare: func(o, old runtime.Object) { keepBut(o, old, "spec") },
	})}
}

// New implements [rest.Storage].
func (f finalizeREST) New() runtime.Object { return f.part.New() }

// Destroy implements [rest.Storage].
func (finalizeREST) Destroy() {}

// Update implements [rest.Updater].
func (f finalizeREST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, force bool, o *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return f.part.Update(ctx, name, info, create, update, force, o)
}

// GetResetFields implements [rest.ResetFieldsStrategy].
func (f finalizeREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return f.part.GetResetFields()
}

// namespaceStore is what namespaces have of other resources' storage. Many at once are not deleted: the store would not
// know to empty them.
type namespaceStore interface {
	rest.Storage
	rest.Scoper
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.Watcher
	rest.ShortNamesProvider
	rest.CategoriesProvider
	rest.SingularNameProvider
	rest.StorageVersionProvider
	rest.ResetFieldsStrategy
}

// namespaceREST serves namespaces, which end only after all that is in them.
type namespaceREST struct {
	namespaceStore
	rest *REST
}

func newNamespaces(r *REST) *namespaceREST {
	r.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, o, old runtime.Object) bool {
		return len(o.(*corev1.Namespace).Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, o, old)
	}
	return &namespaceREST{r, r}
}

// Delete begins the end of a namespace. Who keeps namespaces empties it, takes its finalizer away and with it the
// namespace.
func (n *namespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	o, err := n.rest.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := o.(*corev1.Namespace)
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		options.Preconditions.UID = &ns.UID
	}
	if ns.DeletionTimestamp == nil {
		out, err := n.terminate(ctx, name, validate, options)
		return out, false, err
	}
	if len(ns.Spec.Finalizers) > 0 {
		return ns, false, nil
	}
	return n.rest.Delete(ctx, name, validate, options)
}

func (n *namespaceREST) terminate(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, error) {
	key, err := n.rest.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	wanted := storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion}
	out := &corev1.Namespace{}
	err = n.rest.Storage.GuaranteedUpdate(ctx, key, out, false, &wanted, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		ns := o.(*corev1.Namespace)
		if err := validate(ctx, ns); err != nil {
			return nil, err
		}
		if ns.DeletionTimestamp == nil {
			now := metav1.Now()
			ns.DeletionTimestamp = &now
		}
		ns.Status.Phase = corev1.NamespaceTerminating
		propagate(ns, options)
		return ns, nil
	}), dryrun.IsDryRun(options.DryRun), nil)
	if err == nil {
		return out, nil
	}
	resource := corev1.Resource("namespaces")
	err = storeerr.InterpretUpdateError(storeerr.InterpretGetError(err, resource, name), resource, name)
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		err = apierrors.NewInternalError(err)
	}
	return nil, err
}

// propagate has the garbage collector orphan or delete what belongs to the object before the object goes.
func propagate(o metav1.Object, options *metav1.DeleteOptions) {
	if options.PropagationPolicy == nil && options.OrphanDependents == nil {
		return // what the object says already
	}
	policy := metav1.DeletePropagationBackground
	switch {
	case options.PropagationPolicy != nil:
		policy = *options.PropagationPolicy
	case *options.OrphanDependents:
		policy = metav1.DeletePropagationOrphan
	}
	finalizers := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	switch policy {
	case metav1.DeletePropagationOrphan:
		finalizers = append(finalizers, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationForeground:
		finalizers = append(finalizers, metav1.FinalizerDeleteDependents)
	}
	o.SetFinalizers(finalizers)
}
