package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
)

// refusals is how many references are remembered that were told of.
const refusals = 500

// api is the cluster that there is.
type api struct {
	objects metadata.Interface
	events  record.EventRecorder
	kinds   *kinds
	synced  func() bool

	mu   sync.Mutex
	told map[[2]types.UID]struct{}
}

func (a *api) kind(k schema.GroupKind) (namespaced, served bool) {
	r, served := a.kinds.get(k)
	return r.namespaced, served
}

func (a *api) complete() bool { return a.synced() }

// at is where objects of a place are reached.
func (a *api) at(p place) (metadata.ResourceInterface, error) {
	r, served := a.kinds.get(p.kind.Value())
	if !served {
		return nil, errUnknown
	}
	if !r.namespaced {
		return a.objects.Resource(r.resource), nil
	}
	return a.objects.Resource(r.resource).Namespace(p.namespace.Value()), nil
}

func (a *api) get(ctx context.Context, p place) (*metav1.PartialObjectMetadata, error) {
	objects, err := a.at(p)
	if err != nil {
		return nil, err
	}
	o, err := objects.Get(ctx, p.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && !absent(err, p.name) {
		// The resource itself is gone, or not there yet: that says nothing of the object.
		return nil, fmt.Errorf("%w: %w", errUnknown, err)
	}
	return o, err
}

// absent says whether it is the object that was not found.
func absent(err error, name string) bool {
	s := apierrors.APIStatus(nil)
	return errors.As(err, &s) && s.Status().Details != nil && s.Status().Details.Name == name
}

func (a *api) patch(ctx context.Context, t thing, metadata map[string]any) error {
	objects, err := a.at(t.place)
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"metadata": metadata})
	if err == nil {
		_, err = objects.Patch(ctx, t.name, types.MergePatchType, text, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write %s: %w", t, err)
	}
	return nil
}

func (a *api) remove(ctx context.Context, t thing, version string, policy metav1.DeletionPropagation) error {
	objects, err := a.at(t.place)
	if err != nil {
		return err
	}
	err = objects.Delete(ctx, t.name, metav1.DeleteOptions{
		PropagationPolicy: &policy, Preconditions: &metav1.Preconditions{UID: &t.uid, ResourceVersion: &version},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", t, err)
	}
	return nil
}

func (a *api) refuse(t thing, r metav1.OwnerReference) {
	a.mu.Lock()
	key := [2]types.UID{t.uid, r.UID}
	_, told := a.told[key]
	if len(a.told) >= refusals {
		clear(a.told)
	}
	a.told[key] = struct{}{}
	a.mu.Unlock()
	if told {
		return
	}
	k, served := a.kinds.get(t.kind.Value())
	if !served {
		return
	}
	version, kind := k.resource.GroupVersion().WithKind(t.kind.Value().Kind).ToAPIVersionAndKind()
	a.events.Eventf(&corev1.ObjectReference{
		APIVersion: version, Kind: kind, Namespace: t.namespace.Value(), Name: t.name, UID: t.uid,
	}, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef [%s/%s, name: %s, uid: %s] does not exist in namespace %q",
		r.APIVersion, r.Kind, r.Name, r.UID, t.namespace.Value())
}
