package registry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
)

// NodeDialer reaches the kubelets and what runs on nodes.
type NodeDialer interface {
	// Kubelet is how a kubelet is spoken to: by its own certificates, with ours.
	Kubelet() http.RoundTripper
	// Workload is how pods and services are spoken to, which have certificates of anybody.
	Workload() http.RoundTripper
}

// defaultKubeletPort is that of a kubelet which does not say its own.
const defaultKubeletPort = 10250

// connections are the subresources that lead to somebody else.
func connections(pods, services, endpointSlices, nodes *REST, dial NodeDialer) map[string]rest.Storage {
	to := &targets{pods, services, endpointSlices, nodes, dial}
	every := []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	stream := []string{"GET", "POST"}
	return map[string]rest.Storage{
		"pods/log":         &logREST{to},
		"pods/exec":        connect(&corev1.PodExecOptions{}, stream, to.exec),
		"pods/attach":      connect(&corev1.PodAttachOptions{}, stream, to.attach),
		"pods/portforward": connect(&corev1.PodPortForwardOptions{}, stream, to.portForward),
		"pods/proxy":       connectPath(&corev1.PodProxyOptions{}, every, to.podProxy),
		"services/proxy":   connectPath(&corev1.ServiceProxyOptions{}, every, to.serviceProxy),
		"nodes/proxy":      connectPath(&corev1.NodeProxyOptions{}, every, to.nodeProxy),
	}
}

// target is where a connection goes.
type target struct {
	url       *url.URL
	transport http.RoundTripper
	upgrade   bool // only a connection that is upgraded is any use
	redirect  bool // rewrite what the answer says of its own place
}

// connectREST implements [rest.Connecter].
type connectREST struct {
	options runtime.Object
	methods []string
	subpath bool
	find    func(ctx context.Context, name string, options runtime.Object) (target, error)
}

func connect[O runtime.Object](options O, methods []string, find func(context.Context, string, O) (target, error)) *connectREST {
	return &connectREST{options, methods, false, func(ctx context.Context, name string, o runtime.Object) (target, error) {
		typed, ok := o.(O)
		if !ok {
			return target{}, apierrors.NewBadRequest(fmt.Sprintf("not a %T: %T", options, o))
		}
		return find(ctx, name, typed)
	}}
}

func connectPath[O runtime.Object](options O, methods []string, find func(context.Context, string, O) (target, error)) *connectREST {
	c := connect(options, methods, find)
	c.subpath = true
	return c
}

// New implements [rest.Storage]. For admission's plugins and in discovery such a request is about its options.
func (c *connectREST) New() runtime.Object { return fresh(c.options) }

// Destroy implements [rest.Storage].
func (*connectREST) Destroy() {}

// ConnectMethods implements [rest.Connecter].
func (c *connectREST) ConnectMethods() []string { return c.methods }

// NewConnectOptions implements [rest.Connecter].
func (c *connectREST) NewConnectOptions() (runtime.Object, bool, string) {
	if c.subpath {
		return fresh(c.options), true, "path"
	}
	return fresh(c.options), false, ""
}

// Connect implements [rest.Connecter].
func (c *connectREST) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	t, err := c.find(ctx, name, options)
	if err != nil {
		return nil, err
	}
	handler := proxy.NewUpgradeAwareHandler(t.url, t.transport, t.redirect, t.upgrade, proxy.NewErrorResponder(responder))
	// What a node answers goes on to the client as it is, but to another place it leads nobody.
	handler.RejectForwardingRedirects = true
	return handler, nil
}

// targets finds where connections go.
type targets struct {
	pods, services, slices, nodes *REST
	dial                          NodeDialer
}

// kubelet is the address of a node's kubelet.
func (t *targets) kubelet(ctx context.Context, name string) (*url.URL, error) {
	o, err := t.nodes.Get(cluster(ctx), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return KubeletURL(o.(*corev1.Node))
}

// KubeletURL is where the kubelet of a node is.
func KubeletURL(n *corev1.Node) (*url.URL, error) {
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = defaultKubeletPort
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeInternalDNS, corev1.NodeHostName, corev1.NodeExternalIP, corev1.NodeExternalDNS} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && a.Address != "" {
				return &url.URL{Scheme: "https", Host: net.JoinHostPort(a.Address, strconv.Itoa(int(port)))}, nil
			}
		}
	}
	return nil, apierrors.NewServiceUnavailable("node " + n.Name + " has no address")
}
