package scheduler

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// lookAgain is after how long it is seen whether a kind that was not served is served now. Nothing tells of it.
const lookAgain = time.Minute

// newerKind is one that an older API server does not have. There it is a kind of which there are no objects: else the
// scheduler would wait for the first list of it for ever.
type newerKind struct {
	version  schema.GroupVersion
	resource string
	one      runtime.Object
	none     func() runtime.Object
	client   func(kubernetes.Interface) rest.Interface
}

func newerKinds() []newerKind {
	resources := func(c kubernetes.Interface) rest.Interface { return c.ResourceV1().RESTClient() }
	storage := func(c kubernetes.Interface) rest.Interface { return c.StorageV1().RESTClient() }
	v, s := resourcev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	return []newerKind{
		{v, "devicetaintrules", &resourcev1.DeviceTaintRule{}, func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} }, resources},
		{v, "deviceclasses", &resourcev1.DeviceClass{}, func() runtime.Object { return &resourcev1.DeviceClassList{} }, resources},
		{v, "resourceclaims", &resourcev1.ResourceClaim{}, func() runtime.Object { return &resourcev1.ResourceClaimList{} }, resources},
		{v, "resourceslices", &resourcev1.ResourceSlice{}, func() runtime.Object { return &resourcev1.ResourceSliceList{} }, resources},
		{s, "csistoragecapacities", &storagev1.CSIStorageCapacity{}, func() runtime.Object { return &storagev1.CSIStorageCapacityList{} }, storage},
	}
}

// watchNewer has a factory watch the newer kinds in such a way. It comes before anybody else asks for them.
func watchNewer(f informers.SharedInformerFactory) {
	for _, k := range newerKinds() {
		f.InformerFor(k.one, func(c kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(k.from(c, lookAgain), k.one, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		})
	}
}

func (k *newerKind) from(c kubernetes.Interface, again time.Duration) *maybeServed {
	return &maybeServed{
		ListWatch: cache.NewListWatchFromClient(k.client(c), k.resource, metav1.NamespaceAll, fields.Everything()),
		kind:      k, discovery: c.Discovery(), again: again,
	}
}

// maybeServed lists and watches a kind that the server may not have.
type maybeServed struct {
	*cache.ListWatch

	kind      *newerKind
	discovery discovery.DiscoveryInterface
	again     time.Duration
	missing   atomic.Bool // at the last list
}

var _ cache.ListerWatcherWithContext = (*maybeServed)(nil)

// ListWithContext implements [cache.ListerWithContext].
func (m *maybeServed) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := m.ListWatch.ListWithContext(ctx, o)
	missing := err != nil && m.absent(ctx, err)
	m.missing.Store(missing)
	if missing {
		return m.kind.none(), nil
	}
	return list, err // who lists looks for the API's own error
}

// WatchWithContext implements [cache.WatcherWithContext]. There is nothing to watch of a kind that is not served: after
// a while it has to be listed again.
func (m *maybeServed) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if !m.missing.Load() || o.SendInitialEvents != nil {
		return m.ListWatch.WatchWithContext(ctx, o) // who watches looks for the API's own error
	}
	timer := time.NewTimer(m.again)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err() // who watches has ended it
	case <-timer.C:
		return nil, apierrors.NewResourceExpired(m.kind.resource + " were not served")
	}
}

// absent says whether an error is because the server does not have the kind, which it does not say to who may not read
// it in any case.
func (m *maybeServed) absent(ctx context.Context, err error) bool {
	if ctx.Err() != nil || !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return false
	}
	served, err := m.discovery.ServerResourcesForGroupVersion(m.kind.version.String())
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == m.kind.resource })
}
