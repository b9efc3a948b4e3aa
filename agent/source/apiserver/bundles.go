package apiserver

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/source/apiserver/follow"
)

// bundles has ClusterTrustBundles be followed by the version that the server has: 1.37 has v1, and has v1beta1 only
// where it is asked for, which is the only one of 1.33 to 1.36. A server that is upgraded may have another one from
// then on. It belongs to one follower.
type bundles struct {
	follow.Client
	old bool
}

// Watch implements [follow.Client].
func (b *bundles) Watch(
	ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (w watch.Interface, err error) {
	err = b.either(func() error {
		w, err = b.Client.Watch(ctx, b.of(res), namespace, opts)
		return err
	})
	if err != nil || !b.old {
		return w, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if o, ok := e.Object.(*certificatesv1beta1.ClusterTrustBundle); ok {
			e.Object = bundleOf(o)
		}
		return e, true
	}), nil
}

// List implements [follow.Client].
func (b *bundles) List(
	ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions, into runtime.Object,
) error {
	return b.either(func() error {
		list, known := into.(*certificatesv1.ClusterTrustBundleList)
		if !b.old || !known {
			return b.Client.List(ctx, res, namespace, opts, into)
		}
		var had certificatesv1beta1.ClusterTrustBundleList
		err := b.Client.List(ctx, b.of(res), namespace, opts, &had)
		if err != nil && follow.Unread(err) == nil {
			return err
		}
		list.ListMeta = had.ListMeta
		for i := range had.Items {
			list.Items = append(list.Items, *bundleOf(&had.Items[i]))
		}
		return err
	})
}

// either asks for the version that was there last, and where there is none of it for the other one.
func (b *bundles) either(ask func() error) error {
	err := ask()
	if !apierrors.IsNotFound(err) {
		return err
	}
	b.old = !b.old
	if other := ask(); !apierrors.IsNotFound(other) {
		return other
	}
	b.old = !b.old
	return err
}

func (b *bundles) of(res schema.GroupVersionResource) schema.GroupVersionResource {
	if b.old {
		res.Version = certificatesv1beta1.SchemeGroupVersion.Version
	}
	return res
}

func bundleOf(o *certificatesv1beta1.ClusterTrustBundle) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{ObjectMeta: o.ObjectMeta, Spec: certificatesv1.ClusterTrustBundleSpec(o.Spec)}
}
