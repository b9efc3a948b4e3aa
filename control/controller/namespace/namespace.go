// Package namespace empties namespaces that are deleted: pods first, then all else that discovery knows of, and at last
// the finalizer is taken away by which the namespace was kept.
package namespace

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"

	"github.com/berth-node/berth/control/controller"
)

const (
	// workers is how many namespaces are emptied at a time, and kinds how many kinds of objects of each.
	workers = 4
	kinds   = 8
	// lookAgain is how soon what others have to finish is looked at again: their finalizers are of kinds that nobody
	// watches here.
	lookAgain = time.Second
)

// Deps are what the controller works with.
type Deps struct {
	Client    kubernetes.Interface
	Metadata  metadata.Interface
	Discovery discovery.ServerResourcesInterface
	Informers coreinformers.Interface
	Log       *slog.Logger
}

type emptier struct {
	Deps
	namespaces corelisters.NamespaceLister
}

// New makes the controller.
func New(d Deps) controller.Controller {
	namespaces, pods := d.Informers.Namespaces(), d.Informers.Pods()
	e := &emptier{d, namespaces.Lister()}
	loop := controller.NewLoop(d.Log, workers, e.sync).Watch(namespaces.Informer(), func(o any) []string {
		if n, ok := o.(*corev1.Namespace); ok && n.DeletionTimestamp != nil {
			return []string{n.Name}
		}
		return nil
	})
	// A pod that has ended may be the last one. It is in the cache no more when its deletion is told of.
	return loop.Watch(pods.Informer(), func(o any) []string {
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

func (e *emptier) sync(ctx context.Context, name string) (time.Duration, error) {
	if n, err := e.namespaces.Get(name); apierrors.IsNotFound(err) || err == nil && n.DeletionTimestamp == nil {
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
	left := e.empty(ctx, name)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if left.done() {
		n.Spec.Finalizers = slices.DeleteFunc(n.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
		if _, err := all.Finalize(ctx, n, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("finalize namespace %s: %w", name, err)
		}
		return 0, nil
	}
	if conditions, changed := left.conditions(n.Status.Conditions); changed || n.Status.Phase != corev1.NamespaceTerminating {
		n.Status.Conditions, n.Status.Phase = conditions, corev1.NamespaceTerminating
		if _, err := all.UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("write status of namespace %s: %w", name, err)
		}
	}
	if err := left.failed(); err != nil {
		return 0, fmt.Errorf("empty namespace %s: %w", name, err)
	}
	return max(left.wait, lookAgain), nil
}
