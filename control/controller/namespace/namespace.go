// Package namespace empties namespaces that are deleted: pods first, then all else that discovery knows of, and at last
// the finalizer is taken away by which the namespace was kept.
package namespace

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const (
	// workers is how many namespaces are emptied at a time, and kinds how many kinds of objects of each.
	workers = 4
	kinds   = 8
	// lookAgain is how soon what others have to finish is looked at again: their finalizers are of kinds that nobody
	// watches here. While nothing changes it is later each time, up to lookLast: they may never finish.
	lookAgain = time.Second
	lookLast  = 30 * time.Second
	// lookFailed is how soon it is looked again after something has failed, at first.
	lookFailed = 100 * time.Millisecond
)

// Deps are what the controller works with.
type Deps struct {
	Client    kubernetes.Interface
	Metadata  metadata.Interface
	Discovery discovery.ServerResourcesInterface
	Informers coreinformers.Interface
	// Served are watches of what says which kinds are served: where they could not be learnt, or their objects not be
	// read, it is looked again when that changes.
	Served []cache.SharedIndexInformer
	Log    *slog.Logger
}

type emptier struct {
	Deps
	namespaces corelisters.NamespaceLister

	mu      sync.Mutex
	waiting map[string]wait // namespaces that others have to finish
}

// New makes the controller.
func New(d Deps) controller.Controller { return newEmptier(d).loop() }

func newEmptier(d Deps) *emptier {
	return &emptier{Deps: d, namespaces: d.Informers.Namespaces().Lister(), waiting: map[string]wait{}}
}

func (e *emptier) loop() *controller.Loop[string] {
	loop := controller.NewLoop(e.Log, workers, e.sync).Of(e.space).WatchChanges(e.Informers.Namespaces().Informer(), ofNamespace)
	for _, served := range e.Served {
		loop.WatchOwn(served, e.stuck)
	}
	// A pod that has ended may be the last one. It is in the cache no more when its deletion is told of.
	return loop.Watch(e.Informers.Pods().Informer(), func(o any) []string {
		p, ok := o.(*corev1.Pod)
		if !ok || p.DeletionTimestamp == nil {
			return nil
		}
		if n, err := e.namespaces.Get(p.Namespace); err != nil || n.DeletionTimestamp == nil {
			return nil
		}
		return []string{p.Namespace}
	})
}

// ofNamespace is a namespace that begins to end, or is gone. What it says of its end is written here, and is no reason
// to look again.
func ofNamespace(before, after any) []string {
	was, _ := before.(*corev1.Namespace)
	is, _ := after.(*corev1.Namespace)
	switch {
	case is == nil && was != nil:
		return []string{was.Name}
	case is == nil || is.DeletionTimestamp == nil:
		return nil
	case was != nil && was.DeletionTimestamp != nil && slices.Equal(was.Spec.Finalizers, is.Spec.Finalizers):
		return nil
	}
	return []string{is.Name}
}

func (e *emptier) sync(ctx context.Context, name string) (time.Duration, error) {
	if n, err := e.namespaces.Get(name); apierrors.IsNotFound(err) || err == nil && n.DeletionTimestamp == nil {
		e.forget(name)
		return 0, nil
	}
	all := e.Client.CoreV1().Namespaces()
	// What is written is written to what was read: the cache may be late.
	n, err := all.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read namespace %s: %w", name, err)
	}
	if n.DeletionTimestamp == nil || !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return 0, nil
	}
	left := e.look(ctx, name)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if left.done() {
		n.Spec.Finalizers = slices.DeleteFunc(n.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if _, err := all.Finalize(ctx, n, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("finalize namespace %s: %w", name, err)
		}
		e.forget(name)
		return 0, nil
	}
	if conditions, changed := left.conditions(n.Status.Conditions); changed || n.Status.Phase != corev1.NamespaceTerminating {
		if err := left.failed(); err != nil {
			e.Log.Warn("namespace cannot be emptied yet", "namespace", name, "error", err)
		}
		n.Status.Conditions, n.Status.Phase = conditions, corev1.NamespaceTerminating
		if _, err := all.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("write status of namespace %s: %w", name, err)
		}
	}
	return max(left.wait, e.waits(name, left)), nil
}
