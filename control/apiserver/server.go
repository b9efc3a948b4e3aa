package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/berth-node/berth/control/apiserver/auth"
	"github.com/berth-node/berth/control/apiserver/metrics"
	"github.com/berth-node/berth/control/apiserver/openapi"
	"github.com/berth-node/berth/control/apiserver/registry"
	"github.com/berth-node/berth/control/apiserver/scheme"
	"github.com/berth-node/berth/control/pki"
	"github.com/berth-node/berth/internal/encoded"
)

// Server is an API server that is ready to run.
type Server struct {
	shared *shared
	front  *aggregator.APIAggregator
}

// New makes a server. It serves when it runs.
func New(ctx context.Context, o Options) (*Server, error) {
	s, err := newShared(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	custom, err := s.customResources()
	if err != nil {
		return nil, fmt.Errorf("make server of custom resources: %w", err)
	}
	own, err := s.resources(custom.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("make server of resources: %w", err)
	}
	front, err := s.aggregator(own, custom)
	if err != nil {
		return nil, fmt.Errorf("make aggregator: %w", err)
	}
	return &Server{shared: s, front: front}, nil
}

// Run serves until ctx ends and requests have been answered.
func (s *Server) Run(ctx context.Context) error {
	prepared, err := s.front.PrepareRun()
	if err != nil {
		return fmt.Errorf("prepare API server: %w", err)
	}
	s.shared.config.OpenAPIV3Config.Definitions = nil // what lasts of them is there
	defer s.shared.store.compactor.Stop()
	if err := prepared.Run(ctx); err != nil {
		return fmt.Errorf("run API server: %w", err)
	}
	return nil
}

// Uses is who comes with what an authority has signed that is to go.
func (s *Server) Uses() *auth.Uses { return s.shared.auth.Uses() }

// ReadTokenKeys has tokens of service accounts signed and verified with the keys that are there now. Certificates and
// their authorities are read again by themselves.
func (s *Server) ReadTokenKeys() error {
	key, others, err := s.shared.options.PKI.TokenKeys()
	if err != nil {
		return fmt.Errorf("read key of service account tokens: %w", err)
	}
	return s.shared.auth.SetServiceAccountKeys(key, others)
}

// copyConfig is the configuration for one more server of the chain. What runs after the start belongs to one of them.
func (s *shared) copyConfig() *genericapiserver.RecommendedConfig {
	c := *s.config
	c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	// These servers have version 2 made at the start, of few types.
	two := *c.OpenAPIConfig
	two.GetDefinitions = openapi.LibraryDefinitions
	c.OpenAPIConfig = &two
	return &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: s.informers}
}

func always(gv schema.GroupVersion) func(schema.GroupResource) schema.GroupVersion {
	return func(schema.GroupResource) schema.GroupVersion { return gv }
}

// customResources is the end of the chain: what it does not know, nobody does.
func (s *shared) customResources() (*extensions.CustomResourceDefinitions, error) {
	c := s.copyConfig()
	c.Serializer = scheme.Codecs(extensions.Scheme)
	c.MergedResourceConfig = enable(extensionsv1.SchemeGroupVersion)
	c.RESTOptionsGetter = &options{
		store: s.store, encode: encodedAs(scheme.Codecs(extensions.Scheme), always(extensionsv1.SchemeGroupVersion)), prefix: customPrefix,
	}
	notFound := genericapiserver.NewEmptyDelegateWithCustomHandler(openapi.Undescribed(notFoundHandler(s.codecs)))
	return (&extensions.Config{
		GenericConfig: c,
		ExtraConfig: extensions.ExtraConfig{
			CRDRESTOptionsGetter: &options{store: s.store, encode: encodedAsJSON, prefix: customPrefix},
			MasterCount:          1,
			ServiceResolver:      s.resolver,
			AuthResolverWrapper:  s.reachWebhooks(),
		},
	}).Complete().New(notFound)
}

// resources is the middle: the table.
func (s *shared) resources(next genericapiserver.DelegationTarget) (*genericapiserver.GenericAPIServer, error) {
	versions := registry.StorageVersions()
	builtin := &options{
		store: s.store, prefix: builtinPrefix, cached: registry.Cached(),
		encode: encodedAs(s.codecs, func(r schema.GroupResource) schema.GroupVersion { return versions[r] }),
	}
	s.config.RESTOptionsGetter = builtin
	c := &genericapiserver.RecommendedConfig{Config: *s.config, SharedInformerFactory: s.informers}
	c.SkipOpenAPIInstallation = true // it takes more memory than all else
	server, err := c.Complete().New("kube-apiserver", next)
	if err != nil {
		return nil, err
	}
	nodes, err := newDialer(s.options)
	if err != nil {
		return nil, err
	}
	storage, repair, err := registry.Build(registry.Options{
		Scheme: s.scheme, Storage: builtin, Etcd: s.options.Etcd, Families: s.families(),
		Authenticator: s.auth.Authenticator(), Audiences: s.auth.APIAudiences(), Authorizer: s.auth.Authorizer(), RuleResolver: s.auth.RuleResolver(),
		Tokens: issuer{s.auth.Tokens()}, Roles: s.guard, Nodes: nodes, Healthy: s.store.check, Serve: s.options.Serve, Log: s.options.Log,
	})
	if err != nil {
		return nil, err
	}
	core := s.informers.Core().V1()
	storage[metricsv1beta1.SchemeGroupVersion] = metrics.Storage(metrics.Options{
		Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(), Address: registry.KubeletURL, Transport: nodes.Kubelet, Log: s.options.Log,
	})
	if err := install(server, s, storage); err != nil {
		return nil, err
	}
	s.openID(server)
	s.addHooks(server, repair)
	s.described = openapi.Describe(server.Handler.GoRestfulContainer.RegisteredWebServices(), s.config.OpenAPIConfig, s.config.OpenAPIV3Config)
	s.described.Install(server.Handler.NonGoRestfulMux)
	return server, nil
}

// install adds the groups of the table to a server.
func install(server *genericapiserver.GenericAPIServer, s *shared, storage registry.Storage) error {
	infos := map[string]*genericapiserver.APIGroupInfo{}
	var all []*genericapiserver.APIGroupInfo
	for _, group := range storage.Groups() {
		info := genericapiserver.NewDefaultAPIGroupInfo(group, s.scheme, runtime.NewParameterCodec(s.scheme), s.codecs)
		info.NegotiatedSerializer = encoded.Serializer{NegotiatedSerializer: s.codecs, Decode: careful(s.scheme)}
		infos[group] = &info
		if group != "" {
			all = append(all, &info)
		}
	}
	for gv, resources := range storage {
		infos[gv.Group].VersionedResourcesStorageMap[gv.Version] = resources
	}
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, infos[""]); err != nil {
		return fmt.Errorf("install the core group: %w", err)
	}
	if err := server.InstallAPIGroups(all...); err != nil {
		return fmt.Errorf("install groups: %w", err)
	}
	return nil
}

// aggregator is the front: it knows which group is whose.
func (s *shared) aggregator(own *genericapiserver.GenericAPIServer, custom *extensions.CustomResourceDefinitions) (*aggregator.APIAggregator, error) {
	c := s.copyConfig()
	c.Serializer = scheme.Codecs(aggregatorscheme.Scheme)
	c.MergedResourceConfig = enable(apiregistrationv1.SchemeGroupVersion)
	c.SkipOpenAPIInstallation = true // it serves that of all servers
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(carefulPatches(s.codecs, s.described.Complete(api)), c)
	}
	c.RESTOptionsGetter = &options{
		store: s.store, encode: encodedAs(scheme.Codecs(aggregatorscheme.Scheme), always(apiregistrationv1.SchemeGroupVersion)), prefix: customPrefix,
	}
	proxy := s.options.PKI.Path(pki.FrontProxy)
	front, err := (&aggregator.Config{
		GenericConfig: c,
		ExtraConfig: aggregator.ExtraConfig{
			ProxyClientCertFile: proxy, ProxyClientKeyFile: proxy, ServiceResolver: s.resolver, RejectForwardingRedirects: true,
		},
	}).Complete().NewWithDelegate(own)
	if err != nil {
		return nil, err
	}
	return front, s.register(front, own, custom)
}

// hookTimeout bounds one try of what runs after the start, once.
const hookTimeout = 30 * time.Second
