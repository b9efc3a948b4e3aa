package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

const (
	// keyPrefix is where the API's objects are, as with Kubernetes.
	keyPrefix = "/registry"
	// deleteWorkers is how many objects of a collection are deleted at once.
	deleteWorkers = 10
	// healthTimeout bounds the question whether the store is well.
	healthTimeout = 2 * time.Second
	protobuf      = "application/vnd.kubernetes.protobuf"
)

// store is what all resources of all servers of the chain share of etcd: one client, where the library's factory has a
// connection for each, and one compactor.
type store struct {
	client    *kubernetes.Client
	compactor interface {
		etcd3.Compactor
		Stop()
	}
	transformers value.ResourceTransformers
	tracker      flowcontrolrequest.StorageObjectCountTracker
	leader       *question
}

func newStore(client *clientv3.Client, tracker flowcontrolrequest.StorageObjectCountTracker) *store {
	c := &kubernetes.Client{Client: client}
	c.Kubernetes = c
	client.KV = etcd3.NewETCDLatencyTracker(client.KV)
	return &store{
		client: c, tracker: tracker,
		// A read that has to be of now takes a leader; its error is that there is none.
		leader:    &question{ask: func(ctx context.Context) { _, _ = client.Get(ctx, keyPrefix+"/health", clientv3.WithCountOnly()) }},
		compactor: etcd3.NewCompactor(client, storagebackend.DefaultCompactInterval, clock.RealClock{}, nil),
	}
}

// check says whether the store answers.
func (s *store) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	_, err := s.client.Client.Get(ctx, keyPrefix+"/health")
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	return nil
}

// encoding is how the objects of a resource are written.
type encoding func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)

// encodedAs writes types of a scheme in Protobuf, in the version that is given for the resource.
func encodedAs(codecs serializer.CodecFactory, version func(schema.GroupResource) schema.GroupVersion) encoding {
	return func(r schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
		return serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
			StorageMediaType: protobuf, StorageSerializer: codecs, StorageVersion: version(r),
			MemoryVersion: schema.GroupVersion{Group: r.Group, Version: runtime.APIVersionInternal},
		})
	}
}

// encodedAsJSON writes custom resources, which have no types.
func encodedAsJSON(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
	return unstructured.UnstructuredJSONScheme, nil, nil
}

// options implements [generic.RESTOptionsGetter] for the resources of one server.
type options struct {
	store  *store
	encode encoding
	prefix func(schema.GroupResource) string
	// cached says which resources a cache serves; nil: all.
	cached map[schema.GroupResource]bool
}

// GetRESTOptions implements [generic.RESTOptionsGetter].
func (o *options) GetRESTOptions(r schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, versioner, err := o.encode(r)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("choose encoding of %s: %w", r, err)
	}
	c := storagebackend.NewDefaultConfig(keyPrefix, codec)
	c.EncodeVersioner, c.StorageObjectCountTracker = versioner, o.store.tracker
	if o.store.transformers != nil {
		c.Transformer = o.store.transformers.TransformerForResource(r)
	}
	out := generic.RESTOptions{
		StorageConfig: c.ForResource(r), ResourcePrefix: o.prefix(r), Decorator: o.store.direct,
		EnableGarbageCollection: true, DeleteCollectionWorkers: deleteWorkers,
		CountMetricPollPeriod: time.Minute, StorageObjectCountTracker: o.store.tracker,
	}
	if o.cached == nil || o.cached[r] {
		out.Decorator = o.store.cached
	}
	return out, nil
}

// builtinPrefix is where objects of a resource are below the prefix of all, as Kubernetes' own server has them, so that
// either reads what the other has written.
func builtinPrefix(r schema.GroupResource) string {
	switch {
	case r.Group == "networking.k8s.io" && r.Resource == "ingresses":
		return "ingress"
	case r.Group != "":
		return r.Resource
	}
	switch r.Resource {
	case "nodes":
		return "minions"
	case "services", "endpoints":
		return map[string]string{"services": "services/specs", "endpoints": "services/endpoints"}[r.Resource]
	case "replicationcontrollers":
		return "controllers"
	}
	return r.Resource
}

// customPrefix is where those are that have their group in it.
func customPrefix(r schema.GroupResource) string { return r.Group + "/" + r.Resource }

// plain has objects read from etcd and watched there.
func (s *store) plain(c *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newFunc, newList func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	transformer := c.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	raw, err := etcd3.New(s.client, s.compactor, c.Codec, newFunc, newList, c.Prefix, resourcePrefix, c.GroupResource, transformer,
		c.LeaseManagerConfig, etcd3.NewDefaultDecoder(c.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("open storage of %s: %w", c.GroupResource, err)
	}
	return raw, sync.OnceFunc(raw.Close), nil
}

// direct is plain for who is no cache.
func (s *store) direct(c *storagebackend.ConfigForResource, resourcePrefix string, key func(runtime.Object) (string, error),
	newFunc, newList func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, destroy, err := s.plain(c, resourcePrefix, key, newFunc, newList, attributes, triggers, indexers)
	return apart{raw}, destroy, err
}

// apart is storage whose watches have a stream to etcd that no cache shares. Caches ask for the progress of theirs,
// which etcd tells all watches of the stream: their users would get bookmarks that they have not asked for.
type apart struct{ storage.Interface }

// Watch implements [storage.Interface]. A client of etcd has a stream for each different metadata.
func (a apart) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	return a.Interface.Watch(metadata.AppendToOutgoingContext(ctx, "source", "direct"), key, o)
}

// cached has objects watched once, and all who watch them served from memory.
func (s *store) cached(c *storagebackend.ConfigForResource, resourcePrefix string, key func(runtime.Object) (string, error),
	newFunc, newList func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, destroy, err := s.plain(c, resourcePrefix, key, newFunc, newList, attributes, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	ended, end := context.WithCancel(context.Background())
	front, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:   &rested{Interface: raw, answers: s.leader, ended: ended},
		Versioner: storage.APIObjectVersioner{}, GroupResource: c.GroupResource, EventsHistoryWindow: c.EventsHistoryWindow,
		ResourcePrefix: resourcePrefix, KeyFunc: key, NewFunc: newFunc, NewListFunc: newList, GetAttrsFunc: attributes,
		IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec, Clock: together{},
	})
	if err != nil {
		end()
		destroy()
		return nil, nil, fmt.Errorf("cache %s: %w", c.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(front, raw)
	return delegator, sync.OnceFunc(func() {
		end()
		delegator.Stop()
		front.Stop()
		destroy()
	}), nil
}
