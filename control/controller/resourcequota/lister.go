package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

const (
	// page bounds what is listed at a time, and listPatience for how long.
	page         = 500
	listPatience = time.Minute
)

var errAll = errors.New("a quota is of one namespace")

// objects finds what counts for quotas: pods where they are known anyway, services and claims as they are, since more
// than their number counts, and of all others what there is of their metadata. Nothing is kept of it.
type objects struct {
	client   kubernetes.Interface
	metadata metadata.Interface
	pods     corelisters.PodLister
	gone     func(schema.GroupVersionResource) // is told of what is not served any more
}

// of is the lister of a resource.
func (o objects) of(r schema.GroupVersionResource) (cache.GenericLister, error) {
	list := o.others(r)
	switch r.GroupResource() {
	case corev1.Resource("pods"):
		list = o.ofPods
	case corev1.Resource("services"):
		list = o.ofServices
	case corev1.Resource("persistentvolumeclaims"):
		list = o.ofClaims
	}
	return lister{list: list}, nil
}

func (o objects) ofPods(_ context.Context, namespace string) ([]runtime.Object, error) {
	all, err := o.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	objects := make([]runtime.Object, 0, len(all))
	for _, one := range all {
		objects = append(objects, one)
	}
	return objects, nil
}

// itemsOf are the objects of a list.
func itemsOf(list runtime.Object, err error) ([]runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	return meta.ExtractList(list)
}

func (o objects) ofServices(ctx context.Context, namespace string) ([]runtime.Object, error) {
	return itemsOf(o.client.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{}))
}

func (o objects) ofClaims(ctx context.Context, namespace string) ([]runtime.Object, error) {
	return itemsOf(o.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{}))
}

func (o objects) others(r schema.GroupVersionResource) func(context.Context, string) ([]runtime.Object, error) {
	return func(ctx context.Context, namespace string) ([]runtime.Object, error) {
		var all []runtime.Object
		for next := (metav1.ListOptions{Limit: page}); ; {
			list, err := o.metadata.Resource(r).Namespace(namespace).List(ctx, next)
			if apierrors.IsNotFound(err) {
				o.gone(r)
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", r.GroupResource(), err)
			}
			for i := range list.Items {
				list.Items[i].ManagedFields = nil
				all = append(all, &list.Items[i])
			}
			if next.Continue = list.Continue; next.Continue == "" {
				return all, nil
			}
		}
	}
}

// lister is what the library asks, which has no context.
type lister struct {
	list      func(context.Context, string) ([]runtime.Object, error)
	namespace string
}

// ByNamespace implements [cache.GenericLister].
func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return lister{l.list, namespace}
}

// List implements [cache.GenericLister].
func (l lister) List(labels.Selector) ([]runtime.Object, error) {
	if l.namespace == "" {
		return nil, errAll
	}
	ctx, cancel := context.WithTimeout(context.Background(), listPatience)
	defer cancel()
	return l.list(ctx, l.namespace)
}

// Get implements [cache.GenericLister].
func (l lister) Get(string) (runtime.Object, error) { return nil, errAll }
