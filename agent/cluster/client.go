// Package cluster is the node's way to its API server: a client that goes on when its credentials or the server's
// address change, and the certificates that it and the node's own API have from there.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/berth-node/berth/internal/encoded"
)

// Object is what the API server has. It is an alias, so that those who take a part of [Client] as an interface of their
// own can name what its methods take.
type Object = interface {
	metav1.Object
	runtime.Object
}

// Client asks the API server. Its errors are those of the server, as k8s.io/apimachinery/pkg/api/errors tells them
// apart. It is safe for concurrent use.
type Client struct {
	cfg        *rest.Config
	limiter    flowcontrol.RateLimiter // of all groups together; nil: none
	codecs     serializer.CodecFactory
	parameters runtime.ParameterCodec
	member     *member // keeps the credentials; nil: they are the caller's

	mu      sync.Mutex
	clients map[schema.GroupVersion]*rest.RESTClient
}

// newScheme has the types that a node speaks of, and no others: each costs memory.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	var errs []error
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, authenticationv1.AddToScheme, certificatesv1.AddToScheme, certificatesv1beta1.AddToScheme,
		coordinationv1.AddToScheme, nodev1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
	} {
		errs = append(errs, add(s))
	}
	return s, errors.Join(errs...)
}

// answerWithin bounds a call that is no watch: an API server gives up its requests after a minute.
const answerWithin = 65 * time.Second

// Requests a second where nothing else is said, and at once.
const (
	defaultQPS   = 50
	defaultBurst = 100
)

// NewClient returns a Client of the server that cfg tells of. Its requests a second are those of all groups together;
// 0: 50, less: any number.
func NewClient(cfg *rest.Config) (*Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, fmt.Errorf("prepare client of the API server: %w", err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	own := rest.CopyConfig(cfg)
	own.NegotiatedSerializer = encoded.Serializer{NegotiatedSerializer: codecs.WithoutConversion(), Decode: careful(scheme)}
	if own.QPS == 0 {
		own.QPS, own.Burst = defaultQPS, max(own.Burst, defaultBurst)
	}
	limiter := own.RateLimiter
	if limiter == nil && own.QPS > 0 {
		limiter = flowcontrol.NewTokenBucketRateLimiter(own.QPS, max(own.Burst, 1))
	}
	return &Client{
		cfg: own, limiter: limiter, codecs: codecs, parameters: runtime.NewParameterCodec(scheme),
		clients: map[schema.GroupVersion]*rest.RESTClient{},
	}, nil
}

// Unlimited is the same client without a limit of its requests a second, for who bounds them by their number at a time.
func (c *Client) Unlimited() *Client {
	own := rest.CopyConfig(c.cfg)
	own.QPS, own.Burst, own.RateLimiter = -1, 0, nil
	return &Client{
		cfg: own, codecs: c.codecs, parameters: c.parameters, member: c.member, clients: map[schema.GroupVersion]*rest.RESTClient{},
	}
}

// begin waits until there are credentials, and bounds a call.
func (c *Client) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	if c.member == nil {
		return ctx, cancel, nil
	}
	if err := c.member.link.ready(ctx); err != nil {
		cancel()
		return nil, nil, err
	}
	return ctx, cancel, nil
}

// Ready waits until the node has credentials for its API server. Calls of a Client wait for that, too; those of other
// clients that are made of [Client.Config] fail until then, with [ErrNotJoined].
func (c *Client) Ready(ctx context.Context) error {
	if c.member == nil {
		return nil
	}
	return c.member.link.ready(ctx)
}

// Config is for clients of other kinds. It stays good when the credentials or the server change. Each client that is
// made of it has a rate limit of its own.
func (c *Client) Config() *rest.Config { return rest.CopyConfig(c.cfg) }

// of is the client of a group's version.
func (c *Client) of(gv schema.GroupVersion) (*rest.RESTClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.clients[gv]; have != nil {
		return have, nil
	}
	cfg := rest.CopyConfig(c.cfg)
	cfg.GroupVersion, cfg.APIPath, cfg.RateLimiter = &gv, "/apis", c.limiter
	cfg.Wrap(func(t http.RoundTripper) http.RoundTripper { return bounded{t} })
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	made, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare client of %s: %w", gv, err)
	}
	c.clients[gv] = made
	return made, nil
}

// request is one that names an object, or with an empty name all of a namespace, or with an empty one all of them.
func (c *Client) request(
	res schema.GroupVersionResource, key types.NamespacedName, verb func(*rest.RESTClient) *rest.Request, sub ...string,
) (*rest.Request, error) {
	of, err := c.of(res.GroupVersion())
	if err != nil {
		return nil, err
	}
	r := verb(of).NamespaceIfScoped(key.Namespace, key.Namespace != "").Resource(res.Resource)
	if key.Name != "" {
		r = r.Name(key.Name)
	}
	// Who asks knows when to ask again, and is told by the error what the server says of that.
	return r.SubResource(sub...).MaxRetries(0), nil
}

// Get reads an object.
func (c *Client) Get(ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, into runtime.Object) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	r, err := c.request(res, key, (*rest.RESTClient).Get)
	if err != nil {
		return err
	}
	return ask(ctx, r, key, into)
}

// List reads the objects of a namespace, or of all with "".
func (c *Client) List(
	ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions, into runtime.Object,
) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	r, err := c.request(res, types.NamespacedName{Namespace: namespace}, (*rest.RESTClient).Get)
	if err != nil {
		return err
	}
	return r.VersionedParams(&opts, c.parameters).Do(ctx).Into(into)
}

// Watch hears of changes of what List would read, until it is stopped or ctx ends.
func (c *Client) Watch(
	ctx context.Context, res schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	r, err := c.request(res, types.NamespacedName{Namespace: namespace}, (*rest.RESTClient).Get)
	if err != nil {
		return nil, err
	}
	opts.Watch = true
	if err := c.Ready(ctx); err != nil {
		return nil, err
	}
	return r.VersionedParams(&opts, c.parameters).Watch(ctx)
}

// Create makes an object, or with sub what a subresource of it makes; into has the answer.
func (c *Client) Create(
	ctx context.Context, res schema.GroupVersionResource, o Object, into runtime.Object, sub ...string,
) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	key := types.NamespacedName{Namespace: o.GetNamespace()}
	if len(sub) > 0 {
		key.Name = o.GetName()
	}
	r, err := c.request(res, key, (*rest.RESTClient).Post, sub...)
	if err != nil {
		return err
	}
	if len(sub) > 0 { // it is kept nowhere, and has no UID
		return r.Body(o).Do(ctx).Into(into)
	}
	key.Name = o.GetName()
	return ask(ctx, r.Body(o), key, into)
}

// Update replaces an object, or a subresource of it.
func (c *Client) Update(
	ctx context.Context, res schema.GroupVersionResource, o Object, into runtime.Object, sub ...string,
) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	r, err := c.request(res, key, (*rest.RESTClient).Put, sub...)
	if err != nil {
		return err
	}
	return ask(ctx, r.Body(o), key, into)
}

// Patch changes an object, or a subresource of it.
func (c *Client) Patch(
	ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, kind types.PatchType, patch []byte,
	into runtime.Object, sub ...string,
) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	verb := func(r *rest.RESTClient) *rest.Request { return r.Patch(kind) }
	r, err := c.request(res, key, verb, sub...)
	if err != nil {
		return err
	}
	return ask(ctx, r.Body(patch), key, into)
}

// Delete removes an object.
func (c *Client) Delete(
	ctx context.Context, res schema.GroupVersionResource, key types.NamespacedName, opts metav1.DeleteOptions,
) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	r, err := c.request(res, key, (*rest.RESTClient).Delete)
	if err != nil {
		return err
	}
	return r.Body(&opts).Do(ctx).Error()
}
