// Package apiserver is the API server of a cluster: Kubernetes' API on the published Kubernetes libraries, in one
// process and one delegation chain of the aggregator, the resources of the table, and custom resources.
package apiserver

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	extensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	basecompatibility "k8s.io/component-base/compatibility"
	componenttracing "k8s.io/component-base/tracing"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"

	"github.com/berth-node/berth/control/apiserver/audit"
	"github.com/berth-node/berth/control/apiserver/auth"
	"github.com/berth-node/berth/control/apiserver/openapi"
	"github.com/berth-node/berth/control/apiserver/queues"
	"github.com/berth-node/berth/control/apiserver/scheme"
	"github.com/berth-node/berth/control/apiserver/tracing"
	"github.com/berth-node/berth/control/pki"
)

// Options are what a server is made of.
type Options struct {
	// Listener is where it serves, by HTTPS. Advertise is the address by which pods and other machines reach it.
	Listener  net.Listener
	Advertise netip.Addr
	PKI       *pki.Store
	Etcd      *clientv3.Client
	// ServiceRanges are where services have their addresses of, the range of the default family first.
	ServiceRanges []netip.Prefix
	Issuer        string // of service account tokens, a URL
	// KubeletCA is a file of the authorities of kubelets' certificates. Without one they are not verified, as with
	// Kubernetes: a kubelet makes its own until it is told otherwise.
	KubeletCA string
	// AuthenticationConfiguration and AuthorizationConfiguration are files of apiserver.config.k8s.io; empty: none.
	AuthenticationConfiguration, AuthorizationConfiguration string
	// EncryptionConfiguration is a file of apiserver.config.k8s.io; empty: objects are stored as they are.
	EncryptionConfiguration string
	// Serve are versions that are served beside those that always are.
	Serve   map[schema.GroupVersion]bool
	Audit   audit.Audit
	Tracing *tracing.Provider // nil: none
	Log     *slog.Logger
}

// informerResync is how often informers hand on what they have, in case that somebody has missed it.
const informerResync = 10 * time.Minute

// healthPaths anybody may ask for.
func healthPaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

// clusterInfoPath is what who is to join asks for, before it knows anybody.
const clusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// shared is what the servers of the chain have in common.
type shared struct {
	options   Options
	config    *genericapiserver.Config
	scheme    *runtime.Scheme
	codecs    serializer.CodecFactory
	store     *store
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	auth      *auth.Auth
	clientCA  *dynamiccertificates.DynamicFileCAContent
	proxyCA   *dynamiccertificates.DynamicFileCAContent
	guard     *auth.EscalationCheck
	resolver  serviceResolver
	servers   *servers
	touched   touched
	trusted   changes
	described *openapi.Documents
	began     chan struct{} // closed when the cluster has what it begins with
}

// newShared makes the configuration that each server of the chain has a copy of.
func newShared(ctx context.Context, o Options) (*shared, error) {
	queues.Register()
	if err := boundExpressions(); err != nil {
		return nil, err
	}
	types, err := scheme.New()
	if err != nil {
		return nil, err
	}
	s := &shared{options: o, scheme: types, codecs: scheme.Codecs(types), trusted: make(changes, 1), began: make(chan struct{})}
	c := genericapiserver.NewConfig(s.codecs)
	s.config = c
	c.RequestTimeout = time.Minute
	c.EffectiveVersion = compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.PublicAddress = net.IP(o.Advertise.AsSlice())
	c.ShutdownSendRetryAfter = true
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	c.MergedResourceConfig = serverstorage.NewResourceConfig()
	if err := s.serve(); err != nil {
		return nil, err
	}
	s.watch()
	if err := s.describe(); err != nil {
		return nil, err
	}
	if s.client, err = kubernetes.NewForConfig(c.LoopbackClientConfig); err != nil {
		return nil, fmt.Errorf("make loopback client: %w", err)
	}
	s.informers = informers.NewSharedInformerFactoryWithOptions(s.client, informerResync, informers.WithTransform(withoutManagers))
	if err := s.touched.listen(s.informers); err != nil {
		return nil, err
	}
	s.resolver = serviceResolver{s.informers.Core().V1().Services().Lister()}
	port := o.Listener.Addr().(*net.TCPAddr).AddrPort().Port()
	s.servers = newServers(o.Etcd, netip.AddrPortFrom(o.Advertise, port), o.Log)
	s.store = newStore(o.Etcd, c.StorageObjectCountTracker)
	if err := s.encrypt(ctx); err != nil {
		return nil, err
	}
	c.AddHealthChecks(healthz.NamedCheck("etcd", healthCheck(s.store)))
	c.FlowControl = flowcontrol.New(s.informers, s.client.FlowcontrolV1(), c.MaxRequestsInFlight+c.MaxMutatingRequestsInFlight)
	if err := s.authorize(ctx); err != nil {
		return nil, err
	}
	return s, s.admit()
}

// withoutManagers has informers keep objects without who has set their fields: half of what a small object is.
func withoutManagers(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// serve is how the server is reached: with its certificate by all, and with one of this process by itself.
func (s *shared) serve() error {
	o := s.options
	path := o.PKI.Path(pki.Serving)
	cert, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", path, path)
	if err != nil {
		return fmt.Errorf("read serving certificate: %w", err)
	}
	const loopback = genericapiserver.LoopbackClientServerNameOverride
	certPEM, keyPEM, err := pki.SelfSigned(loopback)
	if err != nil {
		return err
	}
	sni, err := dynamiccertificates.NewStaticSNICertKeyContent("loopback", certPEM, keyPEM, loopback)
	if err != nil {
		return fmt.Errorf("make loopback certificate: %w", err)
	}
	if s.clientCA, err = dynamiccertificates.NewDynamicCAContentFromFile("client-ca", o.PKI.TrustPath(pki.ClusterAuthority)); err != nil {
		return fmt.Errorf("read certificate authority of clients: %w", err)
	}
	if s.proxyCA, err = dynamiccertificates.NewDynamicCAContentFromFile("front-proxy-ca", o.PKI.TrustPath(pki.FrontProxyAuthority)); err != nil {
		return fmt.Errorf("read certificate authority of front proxies: %w", err)
	}
	s.clientCA.AddListener(s.trusted)
	s.proxyCA.AddListener(s.trusted)
	serving := &genericapiserver.SecureServingInfo{
		Listener: o.Listener, Cert: cert, SNICerts: []dynamiccertificates.SNICertKeyContentProvider{sni},
		HTTP2MaxStreamsPerConnection: 250,
	}
	s.config.SecureServing = serving
	if err := s.config.Authentication.ApplyClientCert(s.clientCA, serving); err != nil {
		return fmt.Errorf("verify certificates of clients: %w", err)
	}
	if err := s.config.Authentication.ApplyClientCert(s.proxyCA, serving); err != nil {
		return fmt.Errorf("verify certificates of front proxies: %w", err)
	}
	client, err := serving.NewLoopbackClientConfig(string(uuid.NewUUID()), certPEM)
	if err != nil {
		return fmt.Errorf("make loopback client: %w", err)
	}
	client.ContentType, client.DisableCompression = protobuf, true
	client.QPS = -1 // priority and fairness holds back who has to be
	s.config.LoopbackClientConfig = client
	return nil
}

// watch has requests told of, and their spans sent.
func (s *shared) watch() {
	c := s.config
	c.AuditPolicyRuleEvaluator, c.AuditBackend = s.options.Audit.Rules, s.options.Audit.Backend
	if spans := s.options.Tracing; spans != nil {
		c.TracerProvider = spans
		c.LoopbackClientConfig.Wrap(componenttracing.WrapperFor(spans))
	}
}

// describe makes what OpenAPI is built of when it is asked for.
func (s *shared) describe() error {
	external, err := scheme.External()
	if err != nil {
		return err
	}
	definitions := openapi.Definitions(external)
	namer := apiopenapi.NewDefinitionNamer(external, extensionsapiserver.Scheme, aggregatorscheme.Scheme)
	c := s.config
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	c.OpenAPIConfig.Info.Title, c.OpenAPIV3Config.Info.Title = "Kubernetes", "Kubernetes"
	// What the library makes of GetOperationIDAndTags keeps the definitions of all types for ever.
	c.OpenAPIConfig.GetOperationIDAndTagsFromRoute, c.OpenAPIV3Config.GetOperationIDAndTagsFromRoute = operation, operation
	return nil
}

// operation is what a route is called in OpenAPI.
func operation(r common.Route) (string, []string, error) {
	a, ok := r.(*restfuladapter.RouteAdapter)
	if !ok {
		return "", nil, fmt.Errorf("describe %s: it is no route of a web service", r.Path())
	}
	return apiopenapi.GetOperationIDAndTags(a.Route)
}

// authorize makes who is known, and what they may.
func (s *shared) authorize(ctx context.Context) error {
	key, others, err := s.options.PKI.TokenKeys()
	if err != nil {
		return fmt.Errorf("read key of service account tokens: %w", err)
	}
	a, err := auth.New(ctx, auth.Options{
		ClientCA: s.clientCA, RequestHeaderCA: s.proxyCA, RequestHeaderNames: frontProxyNames(),
		ServiceAccountIssuer: s.options.Issuer, ServiceAccountKey: crypto.Signer(key), ServiceAccountPublicKeys: others,
		AuthenticationConfiguration: s.options.AuthenticationConfiguration, AuthorizationConfiguration: s.options.AuthorizationConfiguration,
		AnonymousPaths: append(healthPaths(), clusterInfoPath),
	}, s.informers, s.client)
	if err != nil {
		return err
	}
	s.auth = a
	s.config.Authentication.Authenticator = roomy{a.Authenticator(), s.config.LongRunningFunc}
	s.config.Authentication.APIAudiences = a.APIAudiences()
	s.config.Authorization.Authorizer, s.config.RuleResolver = a.Authorizer(), a.RuleResolver()
	s.guard = auth.NewEscalationCheck(a.Authorizer(), a.RBAC())
	return nil
}

func frontProxyNames() []string { return []string{"front-proxy-client"} }

// families are those of the ranges of services, in their order.
func (s *shared) families() []corev1.IPFamily {
	var all []corev1.IPFamily
	for _, p := range s.options.ServiceRanges {
		if p.Addr().Is4() {
			all = append(all, corev1.IPv4Protocol)
		} else {
			all = append(all, corev1.IPv6Protocol)
		}
	}
	return all
}

// enable has a copy of the resource configuration in which versions are served.
func enable(versions ...schema.GroupVersion) *serverstorage.ResourceConfig {
	c := serverstorage.NewResourceConfig()
	c.EnableVersions(versions...)
	return c
}
